"""Draw a dashboard without Grafana: ``python -m deploy.monitoring.picture URL path.json path.png --seconds 300``.

It reads the dashboard's JSON, asks a Prometheus for the last seconds, and draws titles, units, legends and places as
Grafana would. The rest of Grafana it does not know.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from deploy.monitoring.grafana import asked
from deploy.monitoring.prometheus import Prometheus, Series

__all__ = ["draw"]

_INK, _PAPER, _BOARD, _GRID = "#ccccdc", "#181b1f", "#111217", "#2c2f36"
_LINES: Final = ("#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d")
_NAMED: Final = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c"}
_CELL: Final = 0.42
"""Inches of a cell of the grid, which is 24 wide."""


def draw(prometheus: Prometheus, dashboard: dict[str, Any], start: float, end: float, interval: str = "10s") -> Figure:
    """Return the dashboard as a figure, over the time from `start` to `end`."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]) + 2
    figure = plt.figure(figsize=(24 * _CELL * 1.6, rows * _CELL), facecolor=_BOARD)
    figure.text(0.008, 1 - 1.1 / rows, dashboard["title"], color=_INK, fontsize=15, weight="bold")
    queries = asked(dashboard, interval)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        left, top = place["x"] / 24, 1 - (place["y"] + 2) / rows
        if panel["type"] == "row":
            figure.text(0.008, top - 0.7 / rows, panel["title"], color=_INK, fontsize=11, weight="bold")
            continue
        mine = {legend: query for (name, legend), query in queries.items() if name == f"{panel['id']} {panel['title']}"}
        box = (left + 0.004, top - (place["h"] - 0.15) / rows, place["w"] / 24 - 0.008, (place["h"] - 0.3) / rows)
        figure.add_artist(Rectangle(box[:2], box[2], box[3], transform=figure.transFigure, color=_PAPER, zorder=-1))
        if panel["type"] == "stat":
            now = [value for query in mine.values() for _, value in prometheus.query(query, time=end)]
            _stat(figure, panel, box, now[0] if now else math.nan)
        else:
            inner = (box[0] + 0.035, box[1] + 2.1 / rows, box[2] - 0.045, box[3] - 3.0 / rows)
            axes = figure.add_axes(inner, xlim=(0, end - start))
            _lines(axes, panel, _asked(prometheus, mine, start, end), start)
    return figure


def _asked(prometheus: Prometheus, queries: dict[str, str], start: float, end: float) -> list[tuple[str, Series]]:
    """Return series with their legends filled in."""
    found = []
    for legend, query in queries.items():
        for labels, values in prometheus.history(query, start, end, max(1.0, (end - start) / 300)):
            text = legend
            for name in ("__name__", *labels):
                text = text.replace(f"{{{{{name}}}}}", labels.get(name, ""))
            found.append((text, (labels, values)))
    return found


def _stat(figure: Figure, panel: dict[str, Any], box: tuple[float, ...], value: float) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    steps = [step for step in defaults["thresholds"]["steps"] if step["value"] is None or value >= step["value"]]
    figure.text(box[0] + 0.006, box[1] + box[3] * 0.8, panel["title"], color=_INK, fontsize=8)
    shown = "no data" if math.isnan(value) else _spell(value, defaults["unit"])
    colour = _NAMED[steps[-1]["color"]]
    middle = box[0] + box[2] / 2
    figure.text(middle, box[1] + box[3] * 0.25, shown, color=colour, fontsize=20, ha="center", weight="bold")


def _lines(axes: Axes, panel: dict[str, Any], found: list[tuple[str, Series]], start: float) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    for number, (legend, (_, values)) in enumerate(found):
        last = next((value for _, value in reversed(values) if not math.isnan(value)), math.nan)
        label = f"{legend}   {_spell(last, defaults['unit'])}"
        times, figures = [at - start for at, _ in values], [value for _, value in values]
        axes.plot(times, figures, color=_LINES[number % len(_LINES)], linewidth=1.1, label=label)
    axes.set_title(panel["title"], color=_INK, fontsize=8.5, loc="left", pad=4)
    axes.set_facecolor(_PAPER)
    axes.set_ylim(bottom=0, top=defaults.get("max"))
    axes.grid(color=_GRID, linewidth=0.6)
    axes.tick_params(colors=_INK, labelsize=6.5, length=0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _spell(value, defaults["unit"])))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 60:g} min"))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 3, 6, 10]))
    for spine in axes.spines.values():
        spine.set_visible(False)
    if found:
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.08, -0.12), ncols=2, fontsize=6, frameon=False, labelcolor=_INK,
            columnspacing=1.2, handlelength=1.2,
        )  # fmt: skip
    else:
        axes.text(0.5, 0.5, "no data", color=_INK, transform=axes.transAxes, ha="center")


def _spell(value: float, unit: str) -> str:
    """Write a value with its unit, as Grafana names units."""
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and abs(value) < 1:
        return f"{1000 * value:.3g} ms" if value else "0 s"
    sign = {"s": " s", "reqps": " req/s", "cps": " /s"}.get(unit, "")
    return f"{value:,.0f}{sign}" if abs(value) >= 1000 else f"{value:.3g}{sign}"


def _main() -> None:
    parser = argparse.ArgumentParser(description="Draw a dashboard from what a Prometheus knows.")
    parser.add_argument("url", help="of Prometheus")
    parser.add_argument("dashboard", type=Path, help="JSON file")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    parser.add_argument("--seconds", type=float, default=300, help="how far back")
    given = parser.parse_args()
    mpl.use("Agg")
    end = time.time()
    figure = draw(Prometheus(given.url), json.loads(given.dashboard.read_text()), end - given.seconds, end)
    figure.savefig(given.picture, dpi=100, facecolor=_BOARD)


if __name__ == "__main__":
    _main()
