"""Retrieval over gRPC, and the monitor that measures its recall."""
