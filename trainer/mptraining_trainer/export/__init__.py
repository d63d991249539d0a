"""Export of the trained model as files, and its server for jobs without a run folder."""
