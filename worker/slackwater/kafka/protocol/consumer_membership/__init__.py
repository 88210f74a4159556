"""A member of a consumer group by the consumer protocol (KIP-848) as a state machine."""
