"""The operator: it scales and restarts Kafka consumer groups on Kubernetes without needless rebalances."""
