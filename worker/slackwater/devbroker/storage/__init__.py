"""What a data folder holds: topics, partitions, log segments, producer states."""
