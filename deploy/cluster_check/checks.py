"""What must hold on a cluster that runs an overlay."""

import json
import re
import secrets
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import yaml

from deploy.cluster_check.kubectl import ClusterError, Kubectl
from deploy.cluster_check.pods import doomed, restarts
from deploy.monitoring.build import groups
from deploy.monitoring.prometheus import HERE, JOBS, Prometheus, asked
from weir.config import Settings
from weir.serving.client import RetrievalClient, RetrievalError, by_user

__all__ = ["OPTIONAL", "Checks", "needed_series", "parts", "unseen"]

_METRIC: Final = re.compile(r"(?<![\w:])(?:weir|grpc_server|process)_[a-z0-9_]+")
_RARE: Final = frozenset({"weir_bundle_refused_total"})
"""What there is only after something went wrong."""
_LOOK_SECONDS: Final = 5
_HELP: Final = "docs/deploy.md#a-pod-that-does-not-start"
_ALERT: Final = "WeirTargetDown"
_MONITOR: Final = "deployment/weir-monitor"
_ITEMS: Final = ("jazz-blue-note-000", "jazz-blue-note-001", "jazz-blue-note-002")
"""Of the generated events."""


OPTIONAL: Final[Mapping[str, str]] = {
    "attribution": "weir_attribution_",
    "variants": "weir_variant_",
    "redis-follower": "weir_history_follower_",
    "stream": "weir_pipeline_(job|checkpoint|engine|dropped_late|partition_(watermark|unanswered))_?",
}
"""The parts that an overlay may lack, each with what the names of its metrics start with."""


def parts(resources: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return which of the optional parts the resources of an overlay have."""
    kinds: dict[str, dict[str, Any]] = {}
    for each in resources:
        kinds.setdefault(each["kind"], {})[each["metadata"]["name"]] = each
    [text] = [
        found["data"]["weir.yaml"] for name, found in kinds["ConfigMap"].items() if re.match(r"weir-[^-]+$", name)
    ]
    settings = Settings.model_validate(yaml.safe_load(text))
    [driver] = kinds["StatefulSet"]["weir-ingest"]["spec"]["template"]["spec"]["containers"]
    has = {
        "attribution": settings.serving.served.share > 0,
        "variants": "weir-trainer-variant" in kinds["StatefulSet"],
        "redis-follower": "weir-histories" in kinds.get("Deployment", {}),
        "stream": "stream" in driver["args"],
    }
    return {part for part in OPTIONAL if has[part]}


def needed_series(parts: Iterable[str] = OPTIONAL) -> set[str]:
    """Return the metrics that rules, alerts and dashboards ask for, those of optional parts only for `parts`."""
    queries = [rule["expr"] for group in groups() for rule in group["rules"]]
    for path in (HERE / "dashboards").glob("*.json"):
        queries += asked(json.loads(path.read_text())).values()
    found = {name for query in queries for name in _METRIC.findall(re.sub(r'"[^"]*"', "", query))}
    absent = [prefix for part, prefix in OPTIONAL.items() if part not in parts]
    return {name for name in found if not any(re.match(prefix, name) for prefix in absent)}


@dataclass(frozen=True)
class Checks:
    """The checks; each raises `ClusterError`. `patience` is the longest wait of each, seconds.

    `optional` are the parts that the cluster has beside what every one has.
    """

    kubectl: Kubectl
    patience: float = 900.0
    optional: frozenset[str] = frozenset(OPTIONAL)

    def pods_are_ready(self) -> str:
        """Wait for every workload; return what runs. A pod for which waiting does nothing ends the wait at once."""
        found = self.kubectl.names("statefulsets", "deployments")
        if not found:
            raise ClusterError(f"namespace {self.kubectl.namespace} has no workloads: apply the overlay")
        end, before = time.monotonic() + self.patience, restarts(self.kubectl.pods())
        for name in found:
            while not self._is_rolled_out(name):
                if problems := doomed(self.kubectl.pods(), before):
                    lines = "".join(f"\n  {problem}" for problem in problems)
                    raise ClusterError(
                        f"a pod does not start, and waiting does nothing: {_HELP} says what to do{lines}"
                    )
                if time.monotonic() > end:
                    raise ClusterError(f"{name} is not ready after {self.patience:.0f} s")
        return f"{len(found)} workloads are ready"

    def _is_rolled_out(self, name: str) -> bool:
        try:
            self.kubectl("rollout", "status", name, f"--timeout={_LOOK_SECONDS}s")
        except ClusterError:
            return False
        return True

    def events_are_answered(self) -> str:
        """Send events of a new user to the topic, and wait until a server knows that user."""
        user = f"check-{secrets.token_hex(4)}"
        with self.kubectl.forwarded("deployment/weir-serving", 50051) as address, RetrievalClient(address) as client:
            self.wait(lambda: _token(client, user) is not None, "no server answers")
            sent, token = time.time(), _token(client, user)
            events = [
                {
                    "user_id": user,
                    "item_id": item,
                    "timestamp": round(1000 * sent),
                    "event_type": "play",
                    "event_id": f"{user}-{item}",
                    "attribution_token": token,
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
        needed = needed_series(self.optional) - _RARE
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


def _token(client: RetrievalClient, user: str) -> str | None:
    """Return the attribution token of an answer, None without one."""
    try:
        answer = client.retrieve([by_user(user)])
    except RetrievalError:
        return None
    return answer.attribution_token if answer.hits[0].item_ids else None


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
