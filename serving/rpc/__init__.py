"""The gRPC adapter: codecs, status, admission and instrumentation."""
