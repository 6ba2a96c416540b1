"""`weir check`: sample a log, validate it as the pipeline would, and propose settings."""
