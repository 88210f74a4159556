"""A real Kubernetes node on this machine, for `make node`: docs/design/node.md."""
