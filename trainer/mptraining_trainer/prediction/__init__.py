"""Predictions of trained models: the model, the records, the columns of the outputs, and the Parquet file."""
