"""Export of the trainer state to a bundle for serving. Importing this package alone does not load torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
