"""The long forms of tests that train; `make soak` runs them, and each writes its report into a document."""
