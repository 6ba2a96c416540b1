"""Cache on disk of traced tower graphs, shared by all processes of a machine, since tracing a tower takes seconds.

The files are in ``weir/towers`` of ``XDG_CACHE_HOME``, or of ``~/.cache``, keyed by the tower's settings, the sources
and the library versions. If the folder is not writable, nothing is cached. This module does not load torch.
"""

import logging
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from weir.contracts import Store
from weir.contracts.storage.store import checksum
from weir.trainer.settings.towers import TowerConfig

__all__ = ["read_graph", "write_graph"]


logger = logging.getLogger(__name__)

_TRAINER: Final = Path(__file__).parents[1]
_SOURCES: Final = ("towers/*.py", "settings/towers.py", "export/onnx_models.py")
_LIBRARIES: Final = ("torch", "onnx", "onnxscript", "onnx-ir")

_NOT_KEPT: Final = (OSError, RuntimeError, PackageNotFoundError)
"""Errors for an unusable folder, a user without a home, and a library without a version."""


def read_graph(config: TowerConfig) -> bytes | None:
    """Return the cached graph of a tower; None if it is missing or damaged."""
    try:
        store, key = _store(), _key(config)
        for name in store.glob(f"{key}-*.onnx"):
            graph = store.read(name)
            if name == _name(key, graph):
                return graph
    except _NOT_KEPT as reason:
        logger.debug("no graph of a tower is read: %s", reason)
    return None


def write_graph(config: TowerConfig, graph: bytes) -> None:
    """Store the graph of a tower in the cache."""
    try:
        _store().write(_name(_key(config), graph), graph)
    except _NOT_KEPT as reason:
        logger.debug("the graph of a tower is not kept: %s", reason)


def _store() -> Store:
    """Return the folder of the cache."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Store(f"{folder}/weir/towers")


def _name(key: str, graph: bytes) -> str:
    return f"{key}-{checksum(graph)}.onnx"


def _key(config: TowerConfig) -> str:
    """Return a digest of everything that the graph of a tower depends on."""
    return checksum(f"{config.model_dump_json()} {_made_by()}".encode())


@cache
def _made_by() -> str:
    """Return a digest of the tower's sources and the versions of the libraries, as one string."""
    sources = (path for pattern in _SOURCES for path in sorted(_TRAINER.glob(pattern)))
    digest = checksum(b"".join(path.read_bytes() for path in sources))
    return " ".join([digest, *map(version, _LIBRARIES)])
