"""The programs that a job may have."""
