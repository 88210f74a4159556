"""The types of a ConsumerGroup's status: each declares its schema and its form in the status."""
