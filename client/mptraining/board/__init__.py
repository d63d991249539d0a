"""`mptj board`: a web page over run folders, buckets and the jobs of a cluster.

`sources` find runs, `state` holds them, `details` and `sweep_answers` are answers of the API; `server` serves them.
"""
