"""Result table, rows by metrics: mean and standard deviation over seeds, as Markdown and CSV."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weir.trainer.offline.results import Comparison, RunResult

__all__ = [
    "MetricSummary",
    "Results",
    "Row",
    "Table",
    "as_csv",
    "as_markdown",
    "best",
    "budget",
    "metric_label",
    "notes",
    "stratified_metric",
    "subject",
    "summarise",
    "summary_of",
]

Results = Mapping[tuple[str, int], RunResult]


@dataclass(frozen=True)
class MetricSummary:
    """One metric of one row: a value per finished seed, and a confidence interval if the runs have one."""

    values: tuple[float, ...]
    low: float = math.nan
    high: float = math.nan

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN without values."""
        return float(np.mean(self.values)) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Sample standard deviation over seeds (divided by n - 1); NaN for fewer than two."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else math.nan

    def __str__(self) -> str:
        if not self.values:
            return "–"
        return f"{self.mean:.4f}" + (f" ± {self.deviation:.4f}" if len(self.values) > 1 else "")

    @property
    def interval(self) -> str:
        """The confidence interval as shown in tables."""
        return "–" if math.isnan(self.low) else f"{self.low:.4f} to {self.high:.4f}"


@dataclass(frozen=True)
class Row:
    """One row of a comparison: finished runs, missing seeds, and a summary of each metric over the runs."""

    name: str
    runs: tuple[RunResult, ...]
    missing: tuple[int, ...]
    summaries: dict[str, MetricSummary]

    @property
    def seeds(self) -> str:
        """Number of seeds, as "n of m" if some are missing."""
        done = len(self.runs)
        return f"{done} of {done + len(self.missing)}" if self.missing else f"{done}"

    @property
    def has_deciles(self) -> bool:
        """Whether any run has metrics by popularity decile."""
        return any(run.deciles for run in self.runs)

    @property
    def train_seconds(self) -> MetricSummary:
        """Seconds of training."""
        return MetricSummary(tuple(run.train_seconds for run in self.runs))

    @property
    def best_steps(self) -> str:
        """Numbers of steps after which the tested models were best in validation, as a range over the runs."""
        return _range([run.best_step for run in self.runs]) if self.runs else "–"


@dataclass(frozen=True)
class Table:
    """Rows in the comparison's order, all metrics of the runs (the headline first) and the best rows of each metric."""

    headline: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    best: dict[str, frozenset[str]]

    @property
    def complete(self) -> bool:
        """Whether every row has all seeds."""
        return not any(row.missing for row in self.rows)

    @property
    def progress(self) -> str:
        """Number of finished runs, of all."""
        done = sum(len(row.runs) for row in self.rows)
        return f"{done} of {done + sum(len(row.missing) for row in self.rows)} runs done"


def summarise(comparison: Comparison, results: Results) -> Table:
    """Return the table of all rows of the comparison, including rows without a finished run."""
    names = {name: None for run in results.values() for name in run.metrics}
    metrics = tuple(dict.fromkeys([comparison.headline, *names]))
    rows = []
    for name in comparison.rows:
        runs = tuple(results[name, seed] for seed in comparison.seeds if (name, seed) in results)
        missing = tuple(seed for seed in comparison.seeds if (name, seed) not in results)
        rows.append(Row(name, runs, missing, {metric: _metric(runs, metric) for metric in metrics}))
    best_rows = {metric: best({row.name: row.summaries[metric] for row in rows}) for metric in metrics}
    return Table(comparison.headline, metrics, tuple(rows), best_rows)


def summary_of(runs: Sequence[RunResult], value: Callable[[RunResult], float | None]) -> MetricSummary:
    """Summarise the `value` of each run, without runs where it is None."""
    return MetricSummary(tuple(found for run in runs if (found := value(run)) is not None))


def best(summaries: Mapping[str, MetricSummary]) -> frozenset[str]:
    """Return all rows that share the highest mean; rows without values are ignored."""
    means = {name: summary.mean for name, summary in summaries.items()}
    highest = max((mean for mean in means.values() if not math.isnan(mean)), default=math.nan)
    return frozenset(name for name, mean in means.items() if mean == highest)


def stratified_metric(table: Table) -> str:
    """Return the metric shown for strata and deciles: the headline, or the first metric that they have."""
    names = [name for row in table.rows for run in row.runs for decile in run.deciles for name in decile.metrics]
    return table.headline if table.headline in names or not names else names[0]


def metric_label(metric: str) -> str:
    """Return the display name of a metric: ``Recall@20``, ``NDCG@20``."""
    name, at, cutoff = metric.partition("@")
    return (name.upper() if name in {"ndcg", "mrr", "map"} else name.replace("_", " ").capitalize()) + at + cutoff


def as_markdown(comparison: Comparison, table: Table) -> str:
    """Return title, table and notes in Markdown, with the best of each metric in bold."""
    head = ["Row", "Seeds", *map(metric_label, table.metrics)]
    head += [f"95 % interval of {metric_label(table.headline)}", "Step", "Training, s"]
    lines = [f"# {_escaped(comparison.title)}", "", _escaped(subject(comparison, table)) + ".", ""]
    lines += [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for row in table.rows:
        cells = [_escaped(row.name), row.seeds]
        for metric in table.metrics:
            text = str(row.summaries[metric])
            cells.append(f"**{text}**" if row.name in table.best[metric] else text)
        seconds = f"{row.train_seconds.mean:.1f}" if row.runs else "–"
        lines.append(_line([*cells, row.summaries[table.headline].interval, row.best_steps, seconds]))
    return "\n".join([*lines, "", "\n\n".join(notes(table)), ""])


def notes(table: Table) -> list[str]:
    """Return notes that explain the table."""
    bold = "the highest mean" if table.complete else "the highest mean so far"
    means = f"Mean ± standard deviation over seeds, on test; one seed has no deviation. Bold: {bold}."
    interval = (
        "The 95 % interval is over users (bootstrap), its ends averaged over the seeds: "
        "it covers the choice of users, not that of seeds."
    )
    unfinished = f"Unfinished: {table.progress}. Rows with seeds missing say so."
    return [means, interval] + ([] if table.complete else [unfinished])


def subject(comparison: Comparison, table: Table) -> str:
    """Return data, split, budget, number of seeds and missing runs in one line."""
    seeds = len(comparison.seeds)
    spread = f"mean and standard deviation over {seeds} seeds" if seeds > 1 else f"one seed ({comparison.seeds[0]})"
    said = [f"{comparison.data}, {comparison.split} split", budget(table), spread]
    return "; ".join(said + ([] if table.complete else [f"unfinished, {table.progress}"]))


def budget(table: Table) -> str:
    """Return the steps and examples of the finished runs."""
    runs = [run for row in table.rows for run in row.runs]
    if not runs:
        return "no run yet"
    return f"{_range([run.steps for run in runs])} steps ({_range([run.examples for run in runs])} examples) per run"


def as_csv(table: Table) -> str:
    """Return a CSV line per row with every metric at full precision; unknown values are empty."""
    parts = ("", " deviation", " low", " high")
    head = ["row", "seeds", "seeds missing", *(metric + part for metric in table.metrics for part in parts)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head, "parameters", "train seconds"])
    for row in table.rows:
        cells: list[object] = [row.name, len(row.runs), " ".join(map(str, row.missing))]
        for metric in table.metrics:
            known = row.summaries[metric]
            cells += [_number(value) for value in (known.mean, known.deviation, known.low, known.high)]
        parameters = row.runs[0].parameters if row.runs else ""
        writer.writerow([*cells, parameters, _number(row.train_seconds.mean)])
    return text.getvalue()


def _metric(runs: Sequence[RunResult], metric: str) -> MetricSummary:
    intervals = [run.intervals[metric] for run in runs if metric in run.intervals]
    low, high = np.mean(intervals, axis=0) if intervals else (math.nan, math.nan)
    return MetricSummary(summary_of(runs, lambda run: run.metrics.get(metric)).values, float(low), float(high))


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(name: str) -> str:
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|" else sign for sign in " ".join(name.split()))
