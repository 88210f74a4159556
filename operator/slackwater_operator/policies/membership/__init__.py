"""Decides who may use a group.id, who joins the Kafka group, and who is removed from it."""
