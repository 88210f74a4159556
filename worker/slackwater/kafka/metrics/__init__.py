"""What the metrics of consumers and producers have in common."""
