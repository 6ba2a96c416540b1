"""Plot the dashboards from what a Prometheus scraped: ``python -m deploy.monitoring.picture URL FOLDER --seconds 300``.

Every panel becomes a chart over time (in minutes), at its place in the dashboard. Grafana looks different.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, Final

from jinja2 import Template
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deploy.monitoring.prometheus import HERE, Prometheus, filled

__all__ = ["draw"]

_UNITS: Final = {"percentunit": "{x:.1%}", "s": "{x:g} s", "reqps": "{x:g} req/s", "cps": "{x:g}/s", "short": "{x:g}"}
_INTERVAL: Final = "10s"
_CELL_INCHES: Final = 0.4
"""Height of a cell of Grafana's grid, which is 24 cells wide."""


def draw(prometheus: Prometheus, dashboard: dict[str, Any], start: float, end: float) -> Figure:
    """Return the dashboard as a figure, over the Unix time from `start` to `end`."""
    panels = filled(dashboard, _INTERVAL)["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(16, height * _CELL_INCHES))
    grid = figure.add_gridspec(height, 24, left=0, right=0.99, bottom=0, top=1, wspace=0, hspace=0)
    for panel in panels:
        x, y, w, h = (panel["gridPos"][side] for side in "xywh")
        if panel["type"] == "row":
            figure.text(0.01, 1 - (y + 0.7) / height, panel["title"], weight="bold")
        else:
            _plot(figure.add_subplot(grid[y + 1 : y + h - 1, x + 1 : x + w]), panel, prometheus, start, end)
    return figure


def _plot(axes: Axes, panel: dict[str, Any], prometheus: Prometheus, start: float, end: float) -> None:
    for target in panel["targets"]:
        for labels, values in prometheus.history(target["expr"], start, end, max(1.0, (end - start) / 300)):
            legend = Template(target["legendFormat"]).render(labels)
            axes.plot([(at - start) / 60 for at, _ in values], [value for _, value in values], label=legend)
    defaults = panel["fieldConfig"]["defaults"]
    axes.set(xlim=(0, (end - start) / 60), ylim=(0, 1.05 * defaults["max"] if "max" in defaults else None))
    axes.yaxis.set_major_formatter(_UNITS[defaults["unit"]])
    axes.tick_params(labelsize="x-small")
    axes.set_title(panel["title"], fontsize="small", loc="left")
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize="x-small")


def _main() -> None:
    parser = argparse.ArgumentParser(description="Plot the dashboards from what a Prometheus scraped.")
    parser.add_argument("url", help="of Prometheus")
    parser.add_argument("folder", type=Path, help="for the pictures")
    parser.add_argument("--seconds", type=float, default=300, help="how far back")
    given = parser.parse_args()
    end = time.time()
    for path in (HERE / "dashboards").glob("*.json"):
        figure = draw(Prometheus(given.url), json.loads(path.read_text()), end - given.seconds, end)
        figure.savefig(given.folder / f"monitoring-{path.stem}.png", dpi=80)


if __name__ == "__main__":
    _main()
