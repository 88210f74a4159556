"""`slackwater demo`: real flights through a consumer group that is restarted, killed and scaled meanwhile."""
