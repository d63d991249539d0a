"""What shows files in notebooks."""
