"""The trained model as files, and the server that hands them over without a run folder."""
