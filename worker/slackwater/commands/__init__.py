"""Commands for a first look at a Kafka cluster: ``topics``, ``produce``, ``tail`` and ``lag``."""
