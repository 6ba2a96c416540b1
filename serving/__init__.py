"""The gRPC service: what a bundle knows, answered in top-k items.

Three rings, none of which knows the next outer one: `index` and `bundle` (what is searched), `batcher` and
`retriever` (who is asked when, without transport), `service` and `server` (gRPC). `RetrievalClient` is the way in for
Python; `monitor` measures recall through it. Importing this package alone loads none of them.
"""

import os

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Since 1.29 ONNX Runtime reports the models that it loads to its maker, unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# gRPC reads this when it is imported. Its core writes what peers send to standard error, line ends included: a caller
# could write lines of the log (the debug text of a GOAWAY), or as many as it likes. What fails is told as errors.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
