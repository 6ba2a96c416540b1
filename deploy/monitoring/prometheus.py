"""A private Prometheus: started with the rules of this folder, queried over HTTP.

A drill divides all durations of rules and alerts by a number, so that what takes an hour in production takes a
minute. Thresholds stay as they are.
"""

import json
import math
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml

from weir.up.ports import free_port

__all__ = ["HERE", "JOBS", "Prometheus", "Series", "asked", "faster", "filled", "is_installed", "running"]

HERE: Final = Path(__file__).parent
JOBS: Final = ("weir-pipeline", "weir-trainer", "weir-serving", "weir-monitor")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"(?<=\[)(\d+)([smhd])(?=\])|(?<=offset )(\d+)([smhd])|(?<=for: )(\d+)([smhd])")

Series = tuple[dict[str, str], list[tuple[float, float]]]
"""Labels, and pairs of Unix time and value."""


def is_installed() -> bool:
    """Return whether Prometheus is installed."""
    return shutil.which("prometheus") is not None


def faster(text: str, speed: float) -> str:
    """Divide the durations of a rule file: ranges, offsets and ``for``; at least a second."""

    def divide(match: re.Match[str]) -> str:
        number, unit = (found for found in match.groups() if found)
        return f"{max(1000, round(1000 * int(number) * _UNITS[unit] / speed))}ms"

    return _DURATION.sub(divide, text)


def filled(dashboard: dict[str, Any], interval: str = "1m") -> dict[str, Any]:
    """Return a dashboard with its variables replaced: every namespace, and of other choices the first."""
    chosen = {each["name"]: each["current"]["value"] for each in dashboard["templating"]["list"] if "options" in each}
    text = Template(json.dumps(dashboard)).safe_substitute(chosen, __rate_interval=interval, namespace=".*")
    return dict(json.loads(text))


def asked(dashboard: dict[str, Any], interval: str = "1m") -> dict[tuple[str, str], str]:
    """Return a dashboard's queries as Grafana would send them, by panel (number and title) and legend."""
    return {
        (f"{panel['id']} {panel['title']}", target["legendFormat"]): target["expr"]
        for panel in filled(dashboard, interval)["panels"]
        for target in panel.get("targets", ())
    }


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def get(self, path: str, **parameters: object) -> Any:
        """Return the data of an API call; raises `ValueError` with the server's message on an error."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - our own address
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters or path}: {error.read().decode()}") from None

    def query(self, expression: str, **parameters: object) -> list[tuple[dict[str, str], float]]:
        """Return the current values of an expression, without NaN."""
        found = self.get("query", query=expression, **parameters)["result"]
        values = ((series["metric"], float(series["value"][1])) for series in found)
        return [(labels, value) for labels, value in values if not math.isnan(value)]

    def history(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Return the past values of an expression, series by series."""
        found = self.get("query_range", query=expression, start=start, end=end, step=step)["result"]
        return [(series["metric"], [(at, float(value)) for at, value in series["values"]]) for series in found]

    def targets_up(self) -> set[str]:
        """Return the jobs that answered their last scrape."""
        return {target["labels"]["job"] for target in self.get("targets")["activeTargets"] if target["health"] == "up"}

    def unhealthy_rules(self) -> list[str]:
        """Return the errors of the rules; a rule that was not evaluated yet counts as one."""
        rules = [rule for group in self.get("rules")["groups"] for rule in group["rules"]]
        return [f"{rule['name']}: {rule.get('lastError', rule['health'])}" for rule in rules if rule["health"] != "ok"]

    def alerts(self, *states: str) -> set[str]:
        """Return the names of the alerts in one of these states: ``pending``, ``firing``."""
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] in states}


@contextmanager
def running(folder: Path, ports: Mapping[str, int], *, speed: float = 1) -> Iterator[Prometheus]:
    """Run a Prometheus in an empty folder that scrapes the processes at `ports` (job -> port of this machine)."""
    _lay_out(folder, ports, speed)
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={address}"], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _wait_until_ready(process, f"http://{address}", folder / "prometheus.log")
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()
            process.wait()


def _lay_out(folder: Path, ports: Mapping[str, int], speed: float) -> None:
    for kind in ("rules", "alerts"):
        (folder / kind).mkdir(parents=True)
        for path in (HERE / kind).glob("*.yaml"):
            (folder / kind / path.name).write_text(faster(path.read_text(), speed))
    config = yaml.safe_load((HERE / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), "1s")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    targets = [{"targets": [f"127.0.0.1:{port}"], "labels": {"job": job}} for job, port in ports.items()]
    (folder / "targets.yaml").write_text(yaml.safe_dump(targets))


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError(f"prometheus ended at once: {log.read_text()}")
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):  # noqa: S310 - our own address
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"prometheus is not ready after 30 s: {log.read_text()}")
