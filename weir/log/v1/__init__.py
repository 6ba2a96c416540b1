"""Generated code of `proto/weir/log/v1`; `proto/generate.sh` makes it."""
