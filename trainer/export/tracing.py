"""Trace the tower's graph in a separate process, in the background, because tracing patches modules in use.

``python -m weir.trainer.export.tracing`` reads the settings of a tower as JSON and writes its graph. This module does
not load torch, so that the process can start before the waiting rank has loaded it.
"""

# ruff: noqa: PLC0415 - torch is loaded only where the graph is traced and stored

import logging
import subprocess
import sys
from functools import partial
from typing import Final

from weir.runtime.background import BackgroundTask
from weir.trainer.export.graph_cache import read_graph
from weir.trainer.settings.towers import TowerConfig

__all__ = ["tracing_of"]

logger = logging.getLogger(__name__)


_BEGUN: Final = dict[TowerConfig, BackgroundTask[None]]()


def tracing_of(config: TowerConfig) -> BackgroundTask[None]:
    """Return the background trace of a tower; the first call starts it.

    It has the stream's priority: the first bundle waits for it. If it fails, the export traces the tower itself.
    """
    if config not in _BEGUN:
        _BEGUN[config] = BackgroundTask("weir-tower-tracing", partial(_trace, config))
    return _BEGUN[config]


def _trace(config: TowerConfig) -> None:
    try:
        graph = read_graph(config) or _traced(config)
        if graph is not None:
            from weir.trainer.export.onnx_models import keep_graph

            keep_graph(config, graph)
    except Exception:
        logger.exception("the tower was not traced beside the stream")
        return
    logger.info("ready to export")


def _traced(config: TowerConfig) -> bytes | None:
    command = [sys.executable, "-m", "weir.trainer.export.tracing"]
    settings = config.model_dump_json().encode()
    done = subprocess.run(command, input=settings, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode:
        logger.warning("the tower was not traced beside the stream: its process ended with %d", done.returncode)
        return None
    return done.stdout


def _main() -> None:
    from weir.trainer.export.onnx_models import trace_tower

    graph = trace_tower(TowerConfig.model_validate_json(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(graph)


if __name__ == "__main__":
    _main()
