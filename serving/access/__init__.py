"""Who may call: TLS, tokens, rights and rates, the same for gRPC, HTTP and the page."""
