"""Object stores and HDFS for tests, each a process of its own, and writers to tables in them."""
