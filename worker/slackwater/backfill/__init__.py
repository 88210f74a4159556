"""``slackwater backfill``: runs a group's handler over ranges of its topics on Spark, beside the group."""
