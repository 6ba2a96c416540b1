"""Rules, alerts, runbooks, dashboards and metrics fit each other, by Prometheus' own tools where they are installed."""

import json
import re
import shutil
import subprocess
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from deploy.monitoring import build
from deploy.monitoring.grafana import scoped
from deploy.monitoring.prometheus import asked, faster
from weir.cli.main import app
from weir.config import Settings
from weir.pipelines.metrics import PipelineMetrics
from weir.pipelines.stream.flink_metrics import FlinkMetrics
from weir.serving.histories.redis_follower import FollowerMetrics
from weir.serving.metrics import (
    BundleMetrics,
    CatalogueMetrics,
    HistoryMetrics,
    RequestMetrics,
    RpcMetrics,
    ServedMetrics,
)
from weir.serving.monitor.metrics import AttributionMetrics, MonitorMetrics, VariantMetrics
from weir.serving.variants import LineMetrics
from weir.trainer.stream.metrics import TrainerMetrics

HERE = build.HERE
RULES = [rule for group in build.groups() for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / "dashboards").glob("*.json"))}
RUNBOOKS = HERE.parents[1] / "docs/runbooks.md"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt install prometheus"
)


def promtool(*arguments: str, text: str = "") -> None:
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def exposed() -> list[CollectorRegistry]:
    """Return what each process shows, one registry per process."""
    pipeline, serving, monitor, follower = (CollectorRegistry() for _ in range(4))
    for registry in (pipeline, serving, monitor, follower):
        ProcessCollector(registry=registry)
    PipelineMetrics(pipeline)
    FlinkMetrics(pipeline)
    for kind in (
        RpcMetrics,
        RequestMetrics,
        ServedMetrics,
        HistoryMetrics,
        CatalogueMetrics,
        BundleMetrics,
        LineMetrics,
    ):
        kind(serving)
    MonitorMetrics(monitor)
    AttributionMetrics(monitor)
    VariantMetrics(monitor)
    FollowerMetrics(follower)
    return [pipeline, TrainerMetrics().registry, serving, monitor, follower]


@needs_promtool
def test_rules_are_valid() -> None:
    promtool("check", "rules", *(str(path) for kind in ("rules", "alerts") for path in (HERE / kind).glob("*.yaml")))
    promtool("check", "config", str(HERE / "prometheus.yml"))


@needs_promtool
@pytest.mark.parametrize("path", sorted((HERE / "tests").glob("*.yaml")), ids=lambda path: path.stem)
def test_alerts_fire_and_stay_quiet(path: Path) -> None:
    promtool("test", "rules", str(path))


@needs_promtool
def test_metrics_are_clean() -> None:
    for registry in exposed():
        promtool("check", "metrics", text=generate_latest(registry).decode())


@needs_promtool
def test_queries_of_dashboards_are_valid(tmp_path: Path) -> None:
    queries = {query for dashboard in DASHBOARDS.values() for query in asked(dashboard).values()}
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(sorted(queries))]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "rules.yaml"))


def test_every_alert_is_tested_both_ways() -> None:
    cases: Counter[tuple[str, bool]] = Counter()
    for path in (HERE / "tests").glob("*.yaml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            cases.update((case["alertname"], bool(case.get("exp_alerts"))) for case in test["alert_rule_test"])
    assert set(cases) == {(name, fires) for name in ALERTS for fires in (True, False)}


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    texts = yaml.safe_load((HERE / "runbooks.yaml").read_text())
    assert set(texts) == set(ALERTS)
    for name, alert in ALERTS.items():
        assert alert["annotations"]["runbook_url"].endswith(f"/docs/runbooks.md#{name.lower()}")
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert alert["annotations"]["summary"].endswith(".")
        assert set(texts[name]) == {"see", "meaning", "steps"}, name
        assert all((texts[name]["see"], texts[name]["meaning"], texts[name]["steps"], *texts[name]["steps"])), name


def test_the_page_of_runbooks_has_a_section_for_each_alert() -> None:
    assert sorted(re.findall(r"^### (.+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)) == sorted(ALERTS)


def test_runbooks_speak_of_commands_and_settings_that_exist() -> None:
    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    text = RUNBOOKS.read_text()
    assert set(re.findall(r"`weir ([a-z-]+)", text)) <= commands
    for setting in re.findall(r"`((?:pipeline|trainer|serving|histories|monitor)\.[a-z_.]+)", text):
        model: Any = Settings
        for key in setting.split("."):
            model = model.model_fields[key].annotation


def test_every_metric_is_documented() -> None:
    page = RUNBOOKS.with_name("monitoring.md").read_text()
    for registry in exposed():
        for metric in registry.collect():
            known = metric.name.startswith("process_") or re.search(rf"`{metric.name}(_total|_info)?[{{`]", page)
            assert known, f"{metric.name} is not in docs/monitoring.md"


def test_what_is_made_is_current() -> None:
    stale = [path.name for path, text in build.files().items() if path.read_text() != text]
    assert not stale, "python -m deploy.monitoring.build"


def test_only_metrics_that_exist_are_asked_for() -> None:
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""], "info": ["_info"]}
    metrics = [metric for registry in exposed() for metric in registry.collect()]
    known = {metric.name + ending for metric in metrics for ending in endings[metric.type]}
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    queries = [rule["expr"] for rule in RULES]
    queries += [query for dashboard in DASHBOARDS.values() for query in asked(dashboard).values()]
    for query in queries:
        bare = re.sub(r'"[^"]*"', "", query)
        for name in re.findall(r"[a-z_]+:weir_[a-z_]+:[a-z0-9_]+", bare):
            assert name in recorded, (name, query)
        rest = re.sub(r"[a-z_]+:weir_[a-z_]+:[a-z0-9_]+", "", bare)
        for name in re.findall(r"\b(?:weir|grpc_server|process)_[a-z0-9_]+", rest):
            assert name in known, (name, query)


def test_records_are_used() -> None:
    used = " ".join(rule["expr"] for rule in RULES) + json.dumps(list(DASHBOARDS.values()))
    for rule in RULES:
        assert "record" not in rule or rule["record"] in used, rule["record"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_side_by_side_and_say_what_they_show(name: str) -> None:
    panels: list[dict[str, Any]] = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["type"] == "row" or (panel["targets"] and panel["fieldConfig"]["defaults"]["unit"])
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_queries_are_restricted_to_the_chosen_namespaces() -> None:
    query = 'sum by (reason) (rate(a{}[5m])) / b{k="$k"}'
    assert scoped(query) == 'sum by (reason) (rate(a{namespace=~"$namespace"}[5m])) / b{namespace=~"$namespace",k="$k"}'


def test_a_drill_divides_durations_and_nothing_else() -> None:
    text = "expr: rate(a[1h]) > 0.3 * (b:rate5m offset 7d)\nfor: 30m\n"
    assert faster(text, 60) == "expr: rate(a[60000ms]) > 0.3 * (b:rate5m offset 10080000ms)\nfor: 30000ms\n"
    assert faster("for: 5s", 60) == "for: 1000ms"
