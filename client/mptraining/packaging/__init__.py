"""What is shipped to a job, and what its text says about the job."""
