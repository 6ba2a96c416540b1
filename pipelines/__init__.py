"""The pipeline: from the interaction log to committed windows.

`ingest` is the bounded driver; `ReadBlocks` and `BlocksToWindows` are the transforms for a driver of your own.
`transforms.chain` lists the transforms in order, `runs.run` tells how each event counts exactly once. Importing this
package alone loads neither the transforms nor Beam.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
