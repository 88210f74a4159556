"""Where the repository and the documentation are. A release has the addresses of the repository it runs in.

Without imports: the documentation's site is built by another Python, which has only mkdocs.
"""

REPOSITORY = "https://github.com/slackwater/slackwater"
"""Stands for the repository's address, which nobody has registered yet: what the workflow publishes has the
address of the repository that it runs in."""
SITE = "https://slackwater.dev"
"""Stands for the address of the documentation, likewise."""
