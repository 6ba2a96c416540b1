"""Two bundles in one server, champion and challenger: `lines` follows both, `split` says which one answers a call."""
