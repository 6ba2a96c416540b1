"""JSON over HTTP: the retrieval service for callers without gRPC."""
