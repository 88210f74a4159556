"""What the tests see of Kafka through librdkafka, which shares no code with this client."""
