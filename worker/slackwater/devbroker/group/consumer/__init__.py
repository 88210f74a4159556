"""Groups of the consumer protocol (KIP-848), and members of the classic protocol in them."""
