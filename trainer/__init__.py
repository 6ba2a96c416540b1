"""The trainer: towers, negatives, losses, the training loop, checkpoints, evaluation and export.

`train` trains on committed windows. `read_interactions`, `OfflineModel`, `fit` and `rank` work on a closed set of
interactions. Importing this package alone loads none of these modules, and not torch.
"""

import os

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Since 1.29, ONNX Runtime reports loaded models to its vendor unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
