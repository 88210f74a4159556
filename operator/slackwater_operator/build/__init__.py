"""What a ConsumerGroup becomes: pure builders."""
