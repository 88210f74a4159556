"""`python -m tools.client_docs`: writes what of docs/reference/client.md is generated."""

from tools.client_docs import write

write()
