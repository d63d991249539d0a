"""`mptj board`: a web page over run folders, buckets and the jobs of a cluster.

`event_batches` decodes events, `curves` merges them, `event_files` and `run_folder` read them incrementally; `sources`
find runs, `board` holds them; `rows`, `details` and `series` are the pure answers of the API; `server` serves them.
"""
