"""Generated gRPC code."""
