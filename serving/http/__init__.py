"""JSON over HTTP: the same service for callers without gRPC."""
