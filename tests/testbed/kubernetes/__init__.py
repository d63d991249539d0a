"""etcd, API server and controllers as processes, with namespaces, rights, the operator's installation and a queue."""
