"""Stands in for the Kubernetes API server, its controllers and the kubelet on one machine."""
