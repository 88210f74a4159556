"""`kubectl slackwater`: commands for a ConsumerGroup on Kubernetes."""
