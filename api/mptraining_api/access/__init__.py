"""Access of a request by its bearer token: TokenReview, SubjectAccessReview, and a cache of their results."""
