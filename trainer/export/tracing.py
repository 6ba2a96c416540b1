"""Trace the tower's ONNX graph in a separate process, in the background, because tracing patches modules in use.

``python -m weir.trainer.export.tracing`` reads the settings of a tower as JSON from standard input, and writes the
graph to standard output. The module is imported without torch, so that the process starts before torch is loaded.
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
    """The background trace of one tower, at normal priority, since the first bundle waits for it."""

    def __init__(self, config: TowerConfig) -> None:
        self._config = config
        self._thread = Thread(target=self._trace, name="weir-tower-tracing", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the trace; if it failed, the export traces the tower itself."""
        self._thread.join()

    def _trace(self) -> None:
        """Set the graph that the export uses, from the cache or traced by a new process."""
        graph = read_graph(self._config) or self._traced_by_process()
        if graph is not None:
            from weir.trainer.export.onnx_models import keep_graph

            keep_graph(self._config, graph)
        logger.info("ready to export")

    def _traced_by_process(self) -> bytes | None:
        """Return the graph traced by a new process; None, with a warning, if the process failed."""
        command = [sys.executable, "-m", "weir.trainer.export.tracing"]
        settings = self._config.model_dump_json().encode()
        done = subprocess.run(command, input=settings, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if done.returncode:
            logger.warning("the tower was not traced beside the stream: its process ended with %d", done.returncode)
            return None
        return done.stdout


_STARTED: Final = dict[TowerConfig, Tracing]()


def tracing_of(config: TowerConfig) -> Tracing:
    """Return the background trace of a tower; the first call starts it."""
    if config not in _STARTED:
        _STARTED[config] = Tracing(config)
    return _STARTED[config]


def _main() -> None:
    from weir.trainer.export.onnx_models import trace_tower

    graph = trace_tower(TowerConfig.model_validate_json(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(graph)


if __name__ == "__main__":
    _main()
