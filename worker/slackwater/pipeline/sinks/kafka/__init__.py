"""A topic of Kafka: the rows of a batch are records, each at least once."""
