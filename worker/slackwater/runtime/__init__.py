"""What one worker process does: start, join, take, hand over, write, commit, drain, stop.

Nothing here is imported with the package: a returning worker has to get to its JoinGroup quickly.
"""
