"""Measures what users get: recall on events that the model has not seen, through the real server, and freshness.

`loop` is the story, `results` what is kept. Importing this package alone loads neither, so that its settings
(`config`) can be read where gRPC is not installed.
"""

__all__: list[str] = []
