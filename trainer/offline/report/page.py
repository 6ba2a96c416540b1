"""HTML report: one file with embedded plots, style and script, which loads nothing from the network."""

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from pydantic import JsonValue

from weir.trainer.offline.report.look import stroke
from weir.trainer.offline.report.plots import Line, by_decile
from weir.trainer.offline.report.table import (
    MetricSummary,
    Row,
    Table,
    best,
    budget,
    metric_label,
    notes,
    stratified_metric,
    summary_of,
)
from weir.trainer.offline.results import Comparison

__all__ = ["Picture", "Scale", "environment", "render", "settings"]


@dataclass(frozen=True)
class Picture:
    """A plot as PNG for light and for dark screens, and its description."""

    light: bytes
    dark: bytes
    words: str

    @staticmethod
    def uri(data: bytes) -> str:
        """Return the image as a data URI."""
        return f"data:image/png;base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class Scale:
    """Maps values to positions on a strip `width` pixels wide, with `margin` pixels free at both ends."""

    low: float
    high: float
    width: float = 150
    margin: float = 6

    @classmethod
    def of(cls, summaries: Iterable[MetricSummary]) -> "Scale":
        """Return a scale that covers all values and intervals of `summaries`."""
        found = [one for each in summaries for one in (*each.values, each.low, each.high) if math.isfinite(one)]
        return cls(min(found, default=0.0), max(found, default=1.0))

    def __call__(self, value: float) -> float:
        """Return the position of a finite value in pixels from the left; the middle if all values are equal."""
        part = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.margin + part * (self.width - 2 * self.margin), 2)


def environment(*folders: Path) -> jinja2.Environment:
    """Return a template environment over some folders and this one, whose templates they may extend."""
    loader = jinja2.FileSystemLoader([*folders, Path(__file__).parent])
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def render(comparison: Comparison, table: Table, pictures: Mapping[str, Picture]) -> str:
    """Return the page; `pictures` are named ``curves`` and ``popularity``."""
    templates = environment()
    templates.filters |= {"label": metric_label, "number": _number, "finite": math.isfinite}
    shared, own = settings(comparison)
    return templates.get_template("page.html").render(
        comparison=comparison,
        table=table,
        pictures=pictures,
        budget=budget(table),
        notes=notes(table),
        strokes={row.name: stroke(number) for number, row in enumerate(table.rows)},
        scale=Scale.of(row.summaries[table.headline] for row in table.rows),
        finding=_finding(table),
        strata=_strata(table),
        deciles=_deciles(table),
        stratified=stratified_metric(table),
        shared=shared,
        own=own,
    )


def settings(comparison: Comparison) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the settings shared by all rows, and for each row the settings in which rows differ.

    Nested settings have dotted names; a setting missing in a row is an empty string.
    """
    flat = {row: dict(_flat(comparison.configuration.get(row, {}))) for row in comparison.rows}
    names = dict.fromkeys(name for found in flat.values() for name in found)
    values = {name: [found.get(name, "") for found in flat.values()] for name in names}
    shared = {name: found[0] for name, found in values.items() if len(set(found)) == 1 and len(found) > 1}
    own = {row: {name: found.get(name, "") for name in names if name not in shared} for row, found in flat.items()}
    return shared, own


def _flat(value: Mapping[str, JsonValue], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, found in value.items():
        if isinstance(found, dict) and found:
            yield from _flat(found, f"{prefix}{name}.")
        else:
            yield prefix + name, _number(found)


def _number(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list):
        return ", ".join(map(_number, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)


def _finding(table: Table) -> dict[str, Any] | None:
    """Return the best rows by the headline metric, and the rows whose interval overlaps that of the first."""
    names = table.best[table.headline]
    best_rows = [row for row in table.rows if row.name in names]
    if not best_rows:
        return None
    top = best_rows[0].summaries[table.headline]
    others = [row for row in table.rows if row not in best_rows and math.isfinite(row.summaries[table.headline].high)]
    rivals = [row.name for row in others if row.summaries[table.headline].high >= top.low]
    return {"rows": [row.name for row in best_rows], "summary": top, "rivals": rivals, "others": len(others)}


def _strata(table: Table) -> list[dict[str, Any]]:
    """Return name, share of the test cases, metrics by row and best rows of each stratum."""
    metric = stratified_metric(table)
    shares = {name: one.share for row in table.rows for run in row.runs for name, one in run.strata.items()}

    def of(row: Row, name: str) -> MetricSummary:
        return summary_of(row.runs, lambda run: run.strata[name].metrics.get(metric) if name in run.strata else None)

    strata: list[dict[str, Any]] = []
    for name, share in shares.items():
        found = {row.name: of(row, name) for row in table.rows}
        highest = max((one.mean for one in found.values() if math.isfinite(one.mean)), default=math.nan)
        strata.append({"name": name, "share": share, "summaries": found, "best": best(found), "highest": highest})
    return strata


def _deciles(table: Table) -> tuple[list[int], dict[str, Line]]:
    """Return the number of cases of each decile, and the line of each row with deciles."""
    lines = {row.name: by_decile(row, stratified_metric(table)) for row in table.rows if row.has_deciles}
    first = next((run for row in table.rows for run in row.runs if run.deciles), None)
    return [decile.cases for decile in first.deciles] if first else [], lines
