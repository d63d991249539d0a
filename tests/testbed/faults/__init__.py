"""A proxy in front of the API server that refuses, delays, cuts and hides by rules."""
