"""Trace the tower's ONNX graph in a separate process, in the background, because tracing patches modules in use.

``python -m weir.trainer.export.tracing`` reads the settings of a tower as JSON from standard input, and writes the
graph to standard output. The module is imported without torch, so that the process starts before torch is loaded.
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


_STARTED: Final = dict[TowerConfig, BackgroundTask[None]]()


def tracing_of(config: TowerConfig) -> BackgroundTask[None]:
    """Return the background trace of a tower; the first call starts it.

    The trace has normal priority, since the first bundle waits for it. If it fails, the export traces the tower itself.
    """
    if config not in _STARTED:
        _STARTED[config] = BackgroundTask("weir-tower-tracing", partial(_trace, config))
    return _STARTED[config]


def _trace(config: TowerConfig) -> None:
    """Set the graph that the export uses, from the cache or traced by a new process."""
    try:
        graph = read_graph(config) or _traced_by_process(config)
        if graph is not None:
            from weir.trainer.export.onnx_models import keep_graph

            keep_graph(config, graph)
    except Exception:
        logger.exception("the tower was not traced beside the stream")
        return
    logger.info("ready to export")


def _traced_by_process(config: TowerConfig) -> bytes | None:
    """Return the graph traced by a new process; None, with a warning, if the process failed."""
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
