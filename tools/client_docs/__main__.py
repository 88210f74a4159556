"""`python -m tools.client_docs`: writes what of the pages about the client is generated."""

from tools.client_docs import write

write()
