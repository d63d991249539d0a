"""Records: finding, framing, ordering, reading, writing and checking TFRecords, without TensorFlow.

Read in this order: `storage` (one small API over gs:// and local files; `versions` says what a write may replace;
`files` and `gcs` are its two halves, the latter over `connections`, `http_session`, `contact`, which tells whether the
service answers, `sign_in`, which tells why there is no token, and `bucket_errors`), `framing` (what a TFRecord looks
like), `shard_index` and `index` (where every record is: `frame_walk` finds out, `resync` helps it over damage,
`shard_scan` and, for many at once, `index_pass` feed it, `sidecar` keeps it beside remote shards, `compressed` expands
what cannot be read from the middle), `bad_records` (what becomes of damaged ones, with `quarantine`), `order` (which
record comes at which position of an epoch, from `hashing`).

Then how records are read: `fetch` (a range of a bucket's bytes, whatever the network does), `windows` (whole objects,
in order), `read_plan` (which ranges bring some records), `disk_cache` and `shard_bytes` (from where), `loaded` (a range
that arrived), `reader` (records by number, verified), `stream` (records in the order of their need, ahead of it).

Then what is inside a record: `example`, `features`, `manifest`. `transfers` sends several files at a time. Then the
commands: `verify`, `indexing`, and `convert` with `shards`, the writer, `shard_upload`, on the way to a bucket, and
`sources`, what can be converted: `images`, `tables` and `arrays`, with their `labels`.
"""
