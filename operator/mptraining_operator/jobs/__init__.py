"""MPTrainingJobs: reconcile, plan, apply, and the objects of a job."""
