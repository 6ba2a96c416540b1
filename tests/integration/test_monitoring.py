"""A real Prometheus on a real `weir up`: targets, rules and the dashboards' queries.

The alerts' faults take minutes and are a drill of their own: ``make drill``.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.monitoring.drill import empty_queries, is_rare, weir_up
from deploy.monitoring.picture import draw
from deploy.monitoring.prometheus import HERE, JOBS, is_installed, running

pytestmark = pytest.mark.skipif(not is_installed(), reason="there is no prometheus to start: apt install prometheus")


def wait(missing: Callable[[], object], what: str, log: Path) -> None:
    end = time.monotonic() + 200
    while left := missing():
        assert time.monotonic() < end, f"{what}: {left}; {log.name} ends: {log.read_text()[-2000:]}"
        time.sleep(0.5)


BOARDS = [path for path in (HERE / "dashboards").glob("*.json") if path.stem != "stream"]
"""Nothing here runs on Flink."""


def test_every_query_of_the_dashboards_has_data(tmp_path: Path) -> None:
    start = time.time()
    with (  # the offset leads beyond the ports that outgoing connections take
        weir_up(tmp_path, 12_000, "--demo", "--seconds", "60") as ports,
        running(tmp_path / "prometheus", ports, speed=60) as prometheus,
    ):
        log = tmp_path / "weir.log"
        wait(lambda: set(JOBS) - prometheus.targets_up(), "a target is not up", log)
        wait(prometheus.unhealthy_rules, "a rule was not evaluated", log)
        wait(lambda: empty_queries(prometheus, start, 1), "a query has no data", log)
        for path in BOARDS:
            dashboard = json.loads(path.read_text())
            figure = draw(prometheus, dashboard, start, time.time())
            panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
            assert len(figure.axes) == len(panels)
            for axes, panel in zip(figure.axes, panels, strict=True):
                rare = all(is_rare(target["expr"]) for target in panel["targets"])
                assert bool(axes.get_lines()) != rare, (path.name, panel["title"])
