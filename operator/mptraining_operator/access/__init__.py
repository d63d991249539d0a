"""Authentication of requests to the operator."""
