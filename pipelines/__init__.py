"""The pipeline: from the interaction log to committed windows.

`ingest` is the bounded driver; `ReadBlocks` and `BlocksToWindows` are the transforms for a driver of your own. Read
`chain` for the transforms in their order and `positions` for what makes every event count exactly once. Importing this
package alone loads none of them, and no Beam.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
