"""The format ``debezium``: changes of the rows of a database, as Debezium's connectors write them."""
