"""From the state of training to a bundle that can be served. Importing this package alone loads no torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
