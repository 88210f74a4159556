"""The fields beneath spec of a ConsumerGroup: one module each for its parts."""
