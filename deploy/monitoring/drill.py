"""A fire drill: cause faults in a running weir, and check that each alert fires and resolves.

    python -m deploy.monitoring.drill          # or: make drill

It starts `weir up` on a live log, and a Prometheus whose alerts are 60 times as fast as in production, then stops
the trainer, stalls, breaks and mixes up the log, damages a bundle and floods the server. Nothing is simulated: the
processes export the series. Takes some four minutes on two cores, Linux only; the exit status is 1 if an alert did
not fire, did not resolve, or if a query of a dashboard had no data.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.monitoring.producer import Producer
from deploy.monitoring.prometheus import HERE, JOBS, Prometheus, asked, is_installed, running
from weir.contracts import BundleFile, BundleLog, Store
from weir.demo.generator import GENERATED
from weir.serving.client import RetrievalClient, RetrievalError, by_user

__all__ = ["empty_queries", "is_rare", "weir_up"]

_SPEED: Final = 60
_RATE: Final = 800
"""Events per second."""
_PORTS: Final = dict(zip(JOBS, range(9101, 9105), strict=True))
_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "pipeline": {
        **GENERATED,
        "window_seconds": 8,
        "allowed_lateness_seconds": 1,
        "history_length": 20,
        "user_shards": 2,
        "idle_seconds": 2.0,
        "poll_seconds": 0.2,
    },
    "trainer": {
        "batch_size": 128,
        "tower": {"dimension": 32, "history_length": 20},
        "negatives": {"uniform": 128},
        "evaluation_examples": 300,
    },
    "monitor": {"examples_per_window": 200, "queries_per_request": 32},
}
_PATIENCE_SECONDS: Final = 150.0


@contextlib.contextmanager
def weir_up(folder: Path, offset: int, *arguments: str) -> Iterator[dict[str, int]]:
    """Run `weir up` on a store in a folder while inside; give the ports of its metrics by job."""
    command = [sys.executable, "-m", "weir", "up", "--store", str(folder / "store"), f"--port-offset={offset}"]
    with (folder / "weir.log").open("wb") as output:
        process = subprocess.Popen([*command, *arguments], stdout=output, stderr=subprocess.STDOUT)
        try:
            yield {job: port + offset for job, port in _PORTS.items()}
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def is_rare(query: str) -> bool:
    """Say whether a query has no data in a store that is a minute old and has one line of settings."""
    return any(part in query for part in ("offset 7d", "weir_variant_", "weir_attribution_variant_"))


def empty_queries(prometheus: Prometheus, start: float, step: float) -> list[str]:
    """Return the queries of the dashboards that had no data since `start`, except those for last week's.

    Those of the stream and of variants are left out: nothing here runs on Flink, and one line of settings is trained.
    """
    empty = []
    for path in sorted(path for path in (HERE / "dashboards").glob("*.json") if path.stem != "stream"):
        for (panel, legend), query in asked(json.loads(path.read_text()), "10s").items():
            found = prometheus.history(query, start, time.time(), step)
            numbers = [value for _, values in found for _, value in values if not math.isnan(value)]
            if not numbers and not is_rare(query):
                empty.append(f"{path.stem}: {panel}, {legend}: {query}")
    return empty


@dataclass
class Fault:
    """Something that goes wrong, the alerts that it should raise, and how to undo it."""

    name: str
    alerts: tuple[str, ...]
    start: Callable[[], None]
    stop: Callable[[], None]
    started: float = 0.0
    ended: float = 0.0


@dataclass
class Drill:
    """One running weir, one Prometheus, and the faults to inject."""

    folder: Path
    offset: int
    prometheus: Prometheus
    producer: Producer
    flood: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.store = Store(str(self.folder / "store"))
        self.bundles = BundleLog(self.store)

    def faults(self) -> list[Fault]:
        """Return the faults in the order in which they are caused."""
        log = self.producer
        return [
            Fault("a third of the lines is cut off", ("WeirDeadLetters",), log.broken.set, log.broken.clear),
            Fault("a bundle is damaged", ("WeirBundleRefused",), self._damage, _nothing),
            Fault("an older bundle is promoted", ("WeirBundleRolledBack",), self._roll_back, _nothing),
            Fault(
                "the server is flooded",
                ("WeirErrorBudgetBurnFast", "WeirLatencyBudgetBurnFast"),
                self._flood,
                self.flood.clear,
            ),
            Fault(
                "the trainer hangs",
                ("WeirTargetDown", "WeirBundleStale"),
                lambda: self._signal("train", signal.SIGSTOP),
                lambda: self._signal("train", signal.SIGCONT),
            ),
            Fault("the producers stop writing", ("WeirInputStalled",), log.silent.set, log.silent.clear),
            Fault("the producers' clock is stuck", ("WeirWatermarkStuck",), log.stuck.set, log.stuck.clear),
            Fault(
                "events are attributed to the wrong users",
                ("WeirRecallBelowPopularity",),
                log.misjoined.set,
                log.misjoined.clear,
            ),
        ]

    def is_well(self) -> bool:
        """Return whether every target is up, recall is measured and good, and nothing fires."""
        good = 'namespace_k:weir_recall_model:avg1h{k="20"} > 1.5 * namespace_k:weir_recall_popularity:avg1h{k="20"}'
        seen = self.prometheus
        return seen.targets_up() == set(JOBS) and bool(seen.query(good)) and not seen.alerts("firing")

    def run(self, fault: Fault) -> None:
        """Cause a fault until its alerts fire, then undo it; first wait until these alerts are quiet."""
        _wait(lambda: not set(fault.alerts) & self.prometheus.alerts("pending", "firing"))
        fault.started = time.time()
        fault.start()
        fired = _wait(lambda: set(fault.alerts) <= self.prometheus.alerts("firing"))
        fault.stop()
        fault.ended = time.time()
        _say(f"{fault.name}: {'fired' if fired else 'DID NOT FIRE'} after {fault.ended - fault.started:.0f} s")

    def times(self, fault: Fault, alert: str) -> tuple[float | None, float | None]:
        """Return the seconds from a fault's start to its alert, and from its end to the alert's."""
        firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        found = self.prometheus.history(firing, fault.started, time.time(), 1)
        at = sorted({moment for _, values in found for moment, _ in values})
        if not at:
            return None, None
        # Another fault may raise it again.
        last = next((one for one, other in pairwise(at) if other - one > 3), at[-1])
        is_over = last < at[-1] or alert not in self.prometheus.alerts("firing")
        return at[0] - fault.started, last - fault.ended if is_over else None

    def _damage(self) -> None:
        """Promote a copy of the served bundle with one byte changed."""
        manifest = self.bundles.manifest(self.bundles.current() or "")
        damaged = manifest.model_copy(update={"version": f"{manifest.version}-damaged"})
        for entry in manifest.files:
            content = self.bundles.read(manifest, entry.name)
            if entry.name == BundleFile.VECTORS:
                content = content[:-1] + bytes([content[-1] ^ 1])
            self.store.write(f"{damaged.folder}/{entry.name}", content)
        self.bundles.commit(damaged)
        self.bundles.promote(damaged.version)

    def _roll_back(self) -> None:
        current = self.bundles.current() or ""
        older = [version for version in self.bundles.versions() if version < current and "damaged" not in version]
        self.bundles.promote(older[0])

    def _flood(self) -> None:
        self.flood.set()
        target = f"127.0.0.1:{50051 + self.offset}"
        for _ in range(12):
            threading.Thread(target=_ask_forever, args=(target, self.flood), daemon=True).start()

    def _signal(self, command: str, number: signal.Signals) -> None:
        """Send a signal to the processes of a command of this drill's `weir up`."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_text().split("\0")
                if f"{self.folder}/" in " ".join(words) and any(word.startswith(command) for word in words):
                    os.kill(int(path.parent.name), number)


def _ask_forever(target: str, flood: threading.Event) -> None:
    with RetrievalClient(target, timeout=10) as client:
        while flood.is_set():
            try:
                client.retrieve([by_user(f"nobody-{number}", 1000) for number in range(256)])
            except RetrievalError:
                time.sleep(0.5)


def _nothing() -> None:
    """Do nothing: the next bundle fixes it."""


def _wait(condition: Callable[[], bool], patience: float = _PATIENCE_SECONDS) -> bool:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.5)
    return False


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def _drill(folder: Path, offset: int) -> list[str]:
    """Run all faults; return what went wrong."""
    settings = folder / "weir.yaml"
    pipeline = _SETTINGS["pipeline"] | {"log": str(folder / "log")}
    settings.write_text(yaml.safe_dump(_SETTINGS | {"pipeline": pipeline}))
    producer = Producer(Store(str(folder / "log")), _RATE)
    producer.start()
    try:
        with (
            weir_up(folder, offset, "--config", str(settings)) as ports,
            running(folder / "prometheus", ports, speed=_SPEED) as prometheus,
        ):
            return _all_faults(Drill(folder, offset, prometheus, producer), time.time())
    finally:
        producer.stopped.set()
        producer.join()


def _all_faults(drill: Drill, start: float) -> list[str]:
    prometheus, faults = drill.prometheus, drill.faults()
    if not _wait(drill.is_well):
        return [f"not up after {_PATIENCE_SECONDS:.0f} s, these alerts fire: {prometheus.alerts('firing')}"]
    _say(f"everything is up after {time.time() - start:.0f} s")
    for fault in faults:
        drill.run(fault)
    raised = {alert for fault in faults for alert in fault.alerts}
    _wait(lambda: not raised & prometheus.alerts("firing"))
    problems = _report(drill, faults)
    _say(f"{time.time() - start:.0f} s in total")
    problems += [f"rule {rule}" for rule in prometheus.unhealthy_rules()]
    return problems + [f"no data: {query}" for query in empty_queries(prometheus, start, 2)]


def _report(drill: Drill, faults: list[Fault]) -> list[str]:
    problems = []
    sys.stdout.write("| fault | alert | fires after | resolves after |\n|---|---|---|---|\n")
    for fault in faults:
        for alert in fault.alerts:
            fired, resolved = drill.times(fault, alert)
            problems += [f"{alert} did not fire"] * (fired is None) + [f"{alert} did not resolve"] * (resolved is None)
            sys.stdout.write(f"| {fault.name} | {alert} | {_spell(fired)} | {_spell(resolved)} |\n")
    return problems


def _spell(seconds: float | None) -> str:
    return "never" if seconds is None else f"{max(0.0, seconds):.0f} s"


def _main() -> None:
    if not is_installed():
        sys.exit("`prometheus` is not installed: apt install prometheus")
    with tempfile.TemporaryDirectory(prefix="weir-drill-") as folder:
        problems = _drill(Path(folder), 3000)
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    _main()
