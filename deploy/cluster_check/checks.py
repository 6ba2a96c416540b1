"""What must hold on a cluster that runs the overlay of a single node."""

import json
import re
import secrets
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from deploy.cluster_check.kubectl import ClusterError, Kubectl
from deploy.monitoring.build import groups
from deploy.monitoring.prometheus import HERE, JOBS, Prometheus, asked
from weir.serving.client import RetrievalClient, RetrievalError, by_user

__all__ = ["Checks", "needed_series", "unseen"]

_METRIC: Final = re.compile(r"(?<![\w:])(?:weir|grpc_server|process)_[a-z0-9_]+")
_RARE: Final = frozenset({"weir_bundle_refused_total"})
"""What there is only after something went wrong."""
_ALERT: Final = "WeirTargetDown"
_MONITOR: Final = "deployment/weir-monitor"
_ITEMS: Final = ("jazz-blue-note-000", "jazz-blue-note-001", "jazz-blue-note-002")
"""Of the generated events."""


def needed_series() -> set[str]:
    """Return the metrics that rules, alerts and dashboards ask for."""
    queries = [rule["expr"] for group in groups() for rule in group["rules"]]
    for path in (HERE / "dashboards").glob("*.json"):
        queries += asked(json.loads(path.read_text())).values()
    return {name for query in queries for name in _METRIC.findall(re.sub(r'"[^"]*"', "", query))}


@dataclass(frozen=True)
class Checks:
    """The checks, each of which raises `ClusterError`; `patience` is the longest wait of each, seconds."""

    kubectl: Kubectl
    patience: float = 900.0

    def pods_are_ready(self) -> str:
        """Wait for every workload; return what runs."""
        found = self.kubectl.names("statefulsets", "deployments")
        if not found:
            raise ClusterError(f"namespace {self.kubectl.namespace} has no workloads: apply the overlay")
        end = time.monotonic() + self.patience
        for name in found:
            left = max(1, round(end - time.monotonic()))
            self.kubectl("rollout", "status", name, f"--timeout={left}s")
        return f"{len(found)} workloads are ready"

    def events_are_answered(self) -> str:
        """Send events of a new user to the topic, and wait until a server knows that user."""
        user = f"check-{secrets.token_hex(4)}"
        with self.kubectl.forwarded("deployment/weir-serving", 50051) as address, RetrievalClient(address) as client:
            self.wait(lambda: _is_answered(client, user), "no server answers")
            sent = time.time()
            events = [
                {
                    "user_id": user,
                    "item_id": item,
                    "timestamp": round(1000 * sent),
                    "event_type": "play",
                    "event_id": f"{user}-{item}",
                }
                for item in _ITEMS
            ]
            lines = "".join(json.dumps(event) + "\n" for event in events)
            self.kubectl(
                "exec", "--stdin", "deployment/weir-producer", "--", "weir", "produce", "--lines", "-", text=lines
            )
            self.wait(lambda: _is_known(client, user), f"events of {user} were sent, and no server knows them")
        return f"events sent to the topic changed an answer after {time.time() - sent:.0f} s"

    def prometheus_has_all_series(self) -> str:
        """Wait until Prometheus in the cluster has all that dashboards and alerts ask for."""
        needed = needed_series() - _RARE
        with self._prometheus() as prometheus:
            self.wait(lambda: prometheus.targets_up() == set(JOBS), "Prometheus does not reach every process")
            self.wait(
                lambda: not needed - _series(prometheus), lambda: f"no series: {sorted(needed - _series(prometheus))}"
            )
            self.wait(lambda: not prometheus.unhealthy_rules(), lambda: f"rules: {prometheus.unhealthy_rules()}")
        return f"Prometheus has the {len(needed)} metrics of rules and dashboards"

    def the_page_shows_every_stage(self) -> str:
        """Wait until the page, through a forwarded port, has an answer of each stage that it watches."""
        with self.kubectl.forwarded(_MONITOR, 50090) as address:
            self.wait(lambda: not unseen(address), lambda: f"the page does not see {unseen(address)}")
        return "the page shows every stage"

    def an_alert_fires_and_resolves(self) -> str:
        """Stop the monitor until Prometheus says so, and start it again."""
        with self._prometheus() as prometheus:
            self.wait(lambda: _ALERT not in prometheus.alerts("pending", "firing"), f"{_ALERT} fires already")
            started = time.monotonic()
            try:
                self.kubectl("scale", _MONITOR, "--replicas=0")
                self.wait(lambda: _ALERT in prometheus.alerts("firing"), f"{_ALERT} does not fire")
                fired = time.monotonic()
            finally:
                self.kubectl("scale", _MONITOR, "--replicas=1")
            self.wait(lambda: _ALERT not in prometheus.alerts("firing"), f"{_ALERT} does not resolve")
        return f"{_ALERT} fired after {fired - started:.0f} s, and resolved after {time.monotonic() - fired:.0f} s"

    @contextmanager
    def _prometheus(self) -> Iterator[Prometheus]:
        with self.kubectl.forwarded("deployment/weir-prometheus", 9090) as address:
            yield Prometheus(f"http://{address}")

    def wait(self, condition: Callable[[], bool], problem: str | Callable[[], str]) -> None:
        """Wait for a condition; raises `ClusterError` with the problem when patience is over."""
        end = time.monotonic() + self.patience
        while not condition():
            if time.monotonic() > end:
                text = problem if isinstance(problem, str) else problem()
                raise ClusterError(f"{text}, after {self.patience:.0f} s")
            time.sleep(2)


def _is_answered(client: RetrievalClient, user: str) -> bool:
    try:
        return bool(client.retrieve([by_user(user)]).hits[0].item_ids)
    except RetrievalError:
        return False


def _is_known(client: RetrievalClient, user: str) -> bool:
    try:
        return not client.retrieve([by_user(user)]).hits[0].fallback
    except RetrievalError:
        return False


def _series(prometheus: Prometheus) -> set[str]:
    found = prometheus.query('count by (__name__) ({__name__=~"(weir|grpc_server|process)_.+"})')
    return {labels["__name__"] for labels, _ in found}


def unseen(address: str) -> list[str]:
    """Return the stages whose metrics the page at an address does not read; raises `ClusterError` without a page."""
    try:
        with urllib.request.urlopen(f"http://{address}/api/stream", timeout=30) as stream:
            line = stream.readline()
    except OSError as error:
        raise ClusterError(f"the page does not answer: {error}") from error
    seen = json.loads(line.removeprefix(b"data: "))["state"]["answering"]
    return sorted(stage for stage, answers in seen.items() if not answers)
