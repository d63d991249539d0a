"""The bounds within which two trainings agree, and the comparison by them."""
