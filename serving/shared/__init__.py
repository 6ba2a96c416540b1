"""Histories in Redis (or Valkey), for replicas without a disk: one follower writes, any number of servers read."""
