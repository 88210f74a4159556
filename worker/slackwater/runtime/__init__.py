"""One worker process: start, join, delivery, takeover, drain and stop.

Nothing here is imported with the package: a returning worker has to get to its JoinGroup quickly.
"""
