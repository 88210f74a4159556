"""The commands of ``slackwater``, a module each."""
