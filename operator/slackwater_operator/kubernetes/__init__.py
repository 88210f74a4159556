"""The Kubernetes API: client, watches, Lease, Events."""
