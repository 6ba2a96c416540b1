"""The trainer: towers, negatives, losses, the training loop, checkpoints, evaluation and export.

`train` runs on committed windows. `read_interactions`, `OfflineModel`, `fit` and `rank` run on a closed set. Importing
this package alone loads none of them, and no torch.
"""

import os

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Since 1.29 ONNX Runtime reports the models that it loads to its maker, unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
