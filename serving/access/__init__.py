"""Access control: TLS, tokens, rights and rate limits, the same for gRPC, HTTP and the page."""
