"""Weir, a streaming retrieval trainer: the command line, its settings and the local supervisor.

Importing this package alone loads none of them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
