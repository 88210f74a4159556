"""kafka-python's own consumer tests, run against Slackwater's consumer. See ``__main__``."""
