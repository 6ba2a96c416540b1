"""Generated gRPC code of `proto/weir/retrieval/v1`; `proto/generate.sh` makes it."""
