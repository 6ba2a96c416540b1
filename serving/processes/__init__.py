"""Several processes that answer on one port, from one copy of the bundle in memory."""
