"""Access of a request by its bearer token: TokenReview, and a cache of its results."""
