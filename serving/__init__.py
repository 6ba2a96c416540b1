"""The retrieval server: top-k items from a bundle over gRPC and HTTP, and its Python client.

Rooms, each independent of the later ones: `index`, `batching`, `histories`, `bundles`, `search` (no transport), `rpc`,
`http`, `native` (transports), `server`. `client` calls the server; `monitor` measures recall through it. Importing this
package alone imports none of them.
"""

import os

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Since 1.29 ONNX Runtime sends telemetry about loaded models, unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Read by gRPC on import. Its core writes text from peers to standard error, line ends included: a caller could forge
# log lines (the debug text of a GOAWAY) or flood the log. Failures still surface as errors.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
