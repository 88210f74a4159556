"""`slackwater demo`: a consumer group on one machine, with a check of its output."""
