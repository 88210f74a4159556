"""The Kubernetes API of Slackwater."""
