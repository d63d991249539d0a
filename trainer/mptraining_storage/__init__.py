"""Local files and Google Cloud Storage behind one API, with retries and errors that name the next step.

`outbox` and `bounded_log` write in the background.
"""
