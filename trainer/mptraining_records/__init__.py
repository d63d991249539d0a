"""TFRecord data sets on local disks and Google Cloud Storage, without TensorFlow.

`storage` reads and writes files and objects; `tfrecord` defines what is in a record; `index` finds every record;
`reading` delivers records in training order; `convert` writes data sets.
"""
