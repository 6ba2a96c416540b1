"""Plots of a comparison: learning curves, and a metric by popularity decile; a row has the same style in both."""

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from weir.trainer.offline.report.look import LIGHT, WIDTH, Theme, label_ends, look, panel, png, sheet, stroke
from weir.trainer.offline.report.table import Row, Table, metric_label

__all__ = ["Line", "by_decile", "curve", "draw_curves", "draw_popularity"]

Floats = npt.NDArray[np.float64]

_TOGETHER: Final = 6
"""Most rows in one panel, so that lines stay distinguishable; with more, each row gets its own panel."""
_COLUMNS: Final = 3


@dataclass(frozen=True)
class Line:
    """Mean and sample standard deviation over seeds at some positions, (n,) each; the deviation of one seed is NaN."""

    at: Floats
    mean: Floats
    deviation: Floats


def draw_curves(table: Table, subtitle: str, theme: Theme = LIGHT) -> bytes:
    """Draw the headline metric on validation against steps as a PNG."""
    lines = {number: curve(row, table.headline) for number, row in enumerate(table.rows)}
    lines = {number: line for number, line in lines.items() if line.at.size}
    label = metric_label(table.headline)
    with look(theme):
        canvas = sheet(max(4.0, 1.5 + 0.36 * len(lines)), f"{label} on validation, while learning", subtitle, theme)
        axes = panel(canvas)
        axes.set_xlabel("steps")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        _draw_together(axes, table, lines, theme)
        return png(canvas)


def draw_popularity(table: Table, metric: str, subtitle: str, theme: Theme = LIGHT) -> bytes:
    """Draw `metric` by popularity decile as a PNG: all rows in one panel, or, for many rows, a panel each."""
    lines = {number: by_decile(row, metric) for number, row in enumerate(table.rows) if row.has_deciles}
    title = f"{metric_label(metric)} on test, by popularity of the item"
    with look(theme):
        if len(lines) > _TOGETHER:
            height = 1.2 + 1.55 * math.ceil(len(lines) / _COLUMNS)
            return png(_panels(table, lines, sheet(height, title, subtitle, theme), theme))
        canvas = sheet(4.0, title, subtitle, theme)
        axes = panel(canvas)
        axes.set(xlabel="popularity decile (1: most popular)", xticks=range(1, 11))
        _draw_together(axes, table, lines, theme, floor=0)
        return png(canvas)


def curve(row: Row, metric: str) -> Line:
    """Return a row's learning curve against steps.

    Seeds may have been validated at different steps, as with a budget in seconds: all are interpolated linearly
    at every validated step in the range that all of them cover.
    """
    runs = [[(point.step, point.metrics[metric]) for point in run.curve if metric in point.metrics] for run in row.runs]
    curves = [np.array(points, dtype=np.float64).T for points in runs if points]
    if not curves:
        return Line(np.empty(0), np.empty(0), np.empty(0))
    steps = np.unique(np.concatenate([at for at, _ in curves]))
    first, last = max(at[0] for at, _ in curves), min(at[-1] for at, _ in curves)
    steps = steps[(steps >= first) & (steps <= last)]
    return _over_seeds(steps, np.array([np.interp(steps, *found) for found in curves]))


def by_decile(row: Row, metric: str) -> Line:
    """Return a row's metric by popularity decile, with the most popular as number 1; the row must have deciles."""
    deciles = zip_longest(*(run.deciles for run in row.runs))
    values = [[one.metrics.get(metric, math.nan) if one else math.nan for one in decile] for decile in deciles]
    return _over_seeds(np.arange(1.0, len(values) + 1), np.array(values, dtype=np.float64).T)


def _over_seeds(at: Floats, values: Floats) -> Line:
    deviation = np.std(values, axis=0, ddof=1) if len(values) > 1 else np.full(at.shape, math.nan)
    return Line(at, values.mean(axis=0), deviation)


def _draw_together(
    axes: Axes, table: Table, lines: Mapping[int, Line], theme: Theme, floor: float | None = None
) -> None:
    if not lines:
        axes.text(0.5, 0.5, "nothing to draw yet", ha="center", transform=axes.transAxes, color=theme.muted)
        return
    for number, line in lines.items():
        _draw(axes, number, line, theme)
    axes.set_ylim(bottom=floor)
    ends = {number: _end(line) for number, line in lines.items() if np.isfinite(line.mean).any()}
    label_ends(axes, [table.rows[number].name for number in ends], list(ends.values()), list(map(stroke, ends)))


def _end(line: Line) -> tuple[float, float]:
    last = np.flatnonzero(np.isfinite(line.mean))[-1]
    return float(line.at[last]), float(line.mean[last])


def _draw(axes: Axes, number: int, line: Line, theme: Theme) -> None:
    # Not clipped, so that a marker at zero is fully visible.
    axes.plot(line.at, line.mean, **stroke(number).style(theme), markevery=max(1, len(line.at) // 12), clip_on=False)
    if np.isfinite(line.deviation).any():
        band = line.mean - line.deviation, line.mean + line.deviation
        axes.fill_between(line.at, *band, color=stroke(number).colour, alpha=0.18, linewidth=0)


def _panels(table: Table, lines: Mapping[int, Line], canvas: Canvas, theme: Theme) -> Canvas:
    """Draw a panel per row: the line of the row in its colour, over the lines of all other rows in grey."""
    height = canvas.get_figheight()
    rows = math.ceil(len(lines) / _COLUMNS)
    panels = canvas.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False).flat
    canvas.subplots_adjust(0.5 / WIDTH, 0.55 / height, 1 - 0.12 / WIDTH, 1 - 0.95 / height, wspace=0.1, hspace=0.42)
    canvas.text(0.5, 0.1 / height, "popularity decile (1: most popular)", ha="center", color=theme.muted)
    for (number, line), axes in zip(lines.items(), panels, strict=False):
        for other in lines.values():
            axes.plot(other.at, other.mean, color=theme.muted, alpha=0.3, linewidth=0.8)
        _draw(axes, number, line, theme)
        name = textwrap.shorten(table.rows[number].name, 36, placeholder=" …")
        axes.set_title(name, loc="left", fontsize=8.5, color=theme.ink)
        axes.set(xticks=[1, 4, 7, 10], ylim=(0, None))
    for axes in panels:
        axes.set_axis_off()
    return canvas
