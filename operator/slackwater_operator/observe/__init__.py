"""What is: snapshots of the outside world for the decisions to look at."""
