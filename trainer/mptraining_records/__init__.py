"""Records: finding, framing, ordering, reading, writing and checking TFRecords, without TensorFlow.

Read in this order: `storage` (one small API over gs:// and local files; `versions` says what a write may replace;
`files` and `gcs` are its two halves, the latter over `connections`, `http_session`, `contact`, which tells whether the
service answers, and `bucket_errors`), `framing` (what a TFRecord looks like), `shard_index` and `index` (where every
record is; `sidecar` keeps that beside remote shards), `order` (which record comes at which position of an epoch, from
`hashing`), `reader` (records by number, verified). Then what is inside a record: `example`, `features`, `manifest`.
`transfers` sends several files at a time. Then the commands: `verify`, and `convert` with `shards`, the writer,
`shard_upload`, on the way to a bucket, and `sources`, what can be converted: `images`, `tables` and `arrays`, with
their `labels`.
"""
