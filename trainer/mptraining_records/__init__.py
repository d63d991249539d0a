"""Records: finding, framing, ordering, reading, writing and checking TFRecords, without TensorFlow.

Read in this order: `storage` (one small API over gs:// and local files; `gcs` with its `connections` and `files` are
its two halves), `framing` (what a TFRecord looks like), `shard_index` and `index` (where every record is: `frame_walk`
finds out, `resync` helps it over damage, `shard_scan` feeds it, `sidecar` keeps it beside remote shards, `compressed`
expands what cannot be read from the middle), `bad_records` (what becomes of damaged ones, with `quarantine`), `order`
(which record comes at which position of an epoch, from `hashing`), `reader` (records by number, verified). Then what is
inside a record: `example`, `features`, `manifest`. Then the commands: `verify`, `indexing`, and `convert` with
`shards`, the writer, and `sources`, what can be converted: `images`, `tables` and `arrays`, with their `labels`.
"""
