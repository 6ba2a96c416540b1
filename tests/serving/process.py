"""Server and monitor as real processes on free ports."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel

from weir.contracts import Store
from weir.serving.access_config import ClientConfig
from weir.serving.bundles.catalogue import CatalogueFiles
from weir.serving.client import RetrievalClient, RetrievalError
from weir.serving.config import ServingConfig
from weir.serving.histories.redis_config import FollowerConfig
from weir.serving.monitor.comparison import Contest
from weir.serving.monitor.config import MonitorConfig

_SERVE = (
    "from functools import partial; from weir.serving.server import serve; "
    "from weir.serving.bundles.catalogue import CatalogueFiles; "
    "from weir.serving.config import ServingConfig as Config; from weir.contracts import FeatureNames; "
    "run = partial(serve, files={files!r}, variants={variants!r})"
)
_MONITOR = (
    "from functools import partial; from weir.serving.monitor.loop import monitor; "
    "from weir.serving.monitor.config import MonitorConfig as Config; "
    "from weir.serving.monitor.comparison import Contest; run = partial(monitor, contest={contest!r})"
)
_FOLLOW = (
    "from functools import partial; from weir.serving.histories.redis_follower import follow; "
    "from weir.serving.histories.redis_config import FollowerConfig as Config; run = partial(follow, forever=True)"
)
_RUN = """
import logging, sys
from weir.contracts import Store
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
run(Store(sys.argv[1]), Config.model_validate_json(sys.argv[2]))
"""


@dataclass
class Process:
    """A stage in a process of its own; `lines` is its log."""

    imports: str
    store: Store
    config: BaseModel
    lines: list[str] = field(default_factory=list)
    out: Path | None = None
    """Where its standard output goes; None: where that of the test goes."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", self.imports + _RUN, self.store.url, self.config.model_dump_json()]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with nullcontext() if self.out is None else self.out.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def said(self, pattern: str, within: float = 30) -> re.Match[str]:
        """Wait for a line of the log."""
        ends = time.monotonic() + within
        while time.monotonic() < ends:
            if found := re.search(pattern, "".join(self.lines)):
                return found
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{''.join(self.lines)}"
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} within {within} s:\n{''.join(self.lines)}")

    def metric(self, name: str, *labels: str) -> float:
        """Return the sum of a metric's samples that have the given labels, spelt ``name="value"``."""
        port = self.said(r"metrics on port (\d+)").group(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return sum(
            float(value)
            for series, _, value in samples
            if series.partition("{")[0] == name and all(label in series for label in labels)
        )

    def terminate(self, within: float = 20) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)


class ServerProcess(Process):
    """`weir.serving.server.serve` with free ports; `client` says how a client reaches it."""

    def __init__(
        self,
        store: Store,
        files: CatalogueFiles | None = None,
        *,
        client: ClientConfig | None = None,
        out: Path | None = None,
        variants: tuple[str, ...] = (),
        **config: object,
    ) -> None:
        defaults = {
            "port": 0,
            "metrics_port": 0,
            "poll_seconds": 0.05,
            "front": os.environ.get("WEIR_TEST_FRONT", "python"),
        }
        served = _SERVE.format(files=files or CatalogueFiles(), variants=variants)
        super().__init__(served, store, ServingConfig.model_validate({**defaults, **config}), out=out)
        self.client = client

    @property
    def target(self) -> str:
        """Where it listens."""
        return self.said(r"gRPC on (127\.0\.0\.1:\d+)").group(1)

    def serving(self, version: str, within: float = 30) -> None:
        """Wait until it serves a version."""
        self.said(f"serving bundle {re.escape(version)}:", within)
        ends = time.monotonic() + within
        with RetrievalClient(self.target, config=self.client) as client:
            while time.monotonic() < ends:
                try:
                    if client.info().bundle_version == version:
                        return
                except RetrievalError:
                    pass
                time.sleep(0.02)
        raise AssertionError(f"{version} is not served after {within} s")


class FollowerProcess(Process):
    """`weir.serving.histories.redis_follower.follow` with a free port."""

    def __init__(self, store: Store, **config: object) -> None:
        super().__init__(
            _FOLLOW, store, FollowerConfig.model_validate({"metrics_port": 0, "poll_seconds": 0.05, **config})
        )


class MonitorProcess(Process):
    """`weir.serving.monitor.monitor` with a free port."""

    def __init__(self, store: Store, *, contest: Contest | None = None, **config: object) -> None:
        super().__init__(
            _MONITOR.format(contest=contest),
            store,
            MonitorConfig.model_validate({"metrics_port": 0, "poll_seconds": 0.05, **config}),
        )
