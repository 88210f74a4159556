"""`python -m tools.client_docs`: writes what of docs/client.md is generated."""

from tools.client_docs import write

write()
