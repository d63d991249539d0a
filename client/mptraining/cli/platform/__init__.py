"""Commands about what the owner of a platform offers to jobs."""
