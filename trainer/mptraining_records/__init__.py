"""Records: finding, framing, ordering, reading, writing and checking TFRecords, without TensorFlow.

Read in this order: `storage` (one small API over gs:// and local files; `gcs` is its remote half),
`framing` (what a TFRecord looks like), `index` (where every record is; `sidecar` keeps that beside remote
shards), `order` (which record comes at which position of an epoch), `reader` (records by number, verified).
Then what is inside a record: `example`, `features`, `manifest`. Then the commands: `convert` (with
`sources` and `images`, what can be converted, and `shards`, the writer) and `verify`.
"""
