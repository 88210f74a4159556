"""Builders of the Kubernetes objects of a group, one module a kind."""
