"""A member of a consumer group: the classic group protocol as a state machine."""
