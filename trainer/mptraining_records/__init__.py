"""TFRecord data sets on local disks and Google Cloud Storage, without TensorFlow.

`tfrecord` encodes and parses records; `index` locates every record; `reading` delivers records in training order;
`convert` writes data sets.
"""
