"""Conversion of image folders, CSV, Parquet and NumPy files to TFRecords."""
