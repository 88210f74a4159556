"""A rewind that the annotation slackwater.dev/rewind asks for."""
