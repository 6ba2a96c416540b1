"""Graphs of towers that have been traced on this machine, for all its processes: tracing one takes seconds.

They are in ``weir/towers`` of ``XDG_CACHE_HOME``, or of ``~/.cache``, by all that a graph depends on: the settings of
the tower, the sources and the libraries. Where nothing can be written, each process traces. Nothing here loads torch.
"""

import logging
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from weir.contracts import Store
from weir.contracts.storage import checksum
from weir.trainer.tower_config import TowerConfig

__all__ = ["read", "write"]

logger = logging.getLogger(__name__)

_TRAINER: Final = Path(__file__).parents[1]
_SOURCES: Final = ("towers/*.py", "tower_config.py", "export/tower.py", "export/graph.py")
_LIBRARIES: Final = ("torch", "onnx", "onnxscript", "onnx-ir")

_NOT_KEPT: Final = (OSError, RuntimeError, PackageNotFoundError)
"""A folder that cannot be used, a user without a home, a library without a version."""


def read(config: TowerConfig) -> bytes | None:
    """Return the graph of a tower; None if there is none, or it has been damaged."""
    try:
        store, key = _store(), _key(config)
        for name in store.glob(f"{key}-*.onnx"):
            graph = store.read(name)
            if name == _name(key, graph):
                return graph
    except _NOT_KEPT as reason:
        logger.debug("no graph of a tower is read: %s", reason)
    return None


def write(config: TowerConfig, graph: bytes) -> None:
    """Keep the graph of a tower."""
    try:
        _store().write(_name(_key(config), graph), graph)
    except _NOT_KEPT as reason:
        logger.debug("the graph of a tower is not kept: %s", reason)


def _store() -> Store:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Store(f"{folder}/weir/towers")


def _name(key: str, graph: bytes) -> str:
    return f"{key}-{checksum(graph)}.onnx"


def _key(config: TowerConfig) -> str:
    return checksum(f"{config.model_dump_json()} {_made_by()}".encode())


@cache
def _made_by() -> str:
    """Return a digest of the sources, and the versions of the libraries."""
    sources = (path for pattern in _SOURCES for path in sorted(_TRAINER.glob(pattern)))
    digest = checksum(b"".join(path.read_bytes() for path in sources))
    return " ".join([digest, *map(version, _LIBRARIES)])
