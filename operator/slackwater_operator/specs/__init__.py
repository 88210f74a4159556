"""Builders of a group's Kubernetes objects: a resource in, manifests out."""
