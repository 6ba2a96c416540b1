"""Measures what users get: recall on events that the model has not seen, through the real server, and freshness.

`loop` has the order of work, `results` the stored figures. Importing this package alone loads neither, so that its
settings (`MonitorConfig`) can be read without gRPC.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
