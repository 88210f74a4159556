"""`python -m tools.cli_docs`: writes docs/reference/cli.md."""

from tools.cli_docs import write

write()
