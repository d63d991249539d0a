"""Google's sign-in, metadata server, DNS names and GKE API, as far as a job or a client uses them."""
