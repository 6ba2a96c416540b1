"""Trace the tower's graph in a separate process, in the background, because tracing patches modules in use.

``python -m weir.trainer.export.tracing`` reads the settings of a tower as JSON and writes its graph. This module does
not load torch, so that the process can start before the waiting rank has loaded it.
"""

# ruff: noqa: PLC0415 - torch is loaded only where the graph is traced and stored

import logging
import subprocess
import sys
from threading import Thread
from typing import Final

from weir.trainer.export.graph_cache import read_graph
from weir.trainer.settings.towers import TowerConfig

__all__ = ["Tracing", "tracing_of"]

logger = logging.getLogger(__name__)


class Tracing:
    """Traces the tower of some settings, with the stream's priority: the first bundle waits for it."""

    def __init__(self, config: TowerConfig) -> None:
        self._config = config
        self._thread = Thread(target=self._trace, name="weir-tower-tracing", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the trace; if it failed, the export traces the tower itself."""
        self._thread.join()

    def _trace(self) -> None:
        graph = read_graph(self._config) or self._traced()
        if graph is not None:
            from weir.trainer.export.onnx_models import keep_graph

            keep_graph(self._config, graph)
        logger.info("ready to export")

    def _traced(self) -> bytes | None:
        command = [sys.executable, "-m", "weir.trainer.export.tracing"]
        settings = self._config.model_dump_json().encode()
        done = subprocess.run(command, input=settings, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if done.returncode:
            logger.warning("the tower was not traced beside the stream: its process ended with %d", done.returncode)
            return None
        return done.stdout


_BEGUN: Final = dict[TowerConfig, Tracing]()


def tracing_of(config: TowerConfig) -> Tracing:
    """Return the background trace of a tower; the first call starts it."""
    if config not in _BEGUN:
        _BEGUN[config] = Tracing(config)
    return _BEGUN[config]


def _main() -> None:
    from weir.trainer.export.onnx_models import trace_tower

    graph = trace_tower(TowerConfig.model_validate_json(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(graph)


if __name__ == "__main__":
    _main()
