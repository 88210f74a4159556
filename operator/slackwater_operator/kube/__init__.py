"""The way to the API server: requests, the Lease, the watches and their Store, Events. Decides nothing."""
