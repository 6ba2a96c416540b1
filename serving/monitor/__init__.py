"""Measures what users get: recall on events that the model has not seen, through the real server, and freshness.

Read `loop` for the order of work and `results` for what is kept. Importing this package alone loads neither, so that
its settings (`MonitorConfig`) can be read where gRPC is not installed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
