import csv
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.offline.report.comparisons import METRICS, comparison, read, run, write
from weir.trainer.offline.report.table import (
    MetricSummary,
    as_csv,
    as_markdown,
    best,
    metric_label,
    stratified_metric,
    subject,
)
from weir.trainer.offline.results import save_result

ROWS = ["BPR", "In-batch | *improved*", "Softmax"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_figures_are_those_of_numpy(tmp_path: Path) -> None:
    table = write(tmp_path, ROWS)
    for row, line in zip(table.rows, csv.DictReader(io.StringIO(as_csv(table))), strict=True):
        runs = [run(row.name, seed) for seed in (0, 1, 2)]
        assert (line["row"], line["seeds"], line["seeds missing"]) == (row.name, "3", "")
        for metric in METRICS:
            values = np.array([one.metrics[metric] for one in runs])
            assert float(line[metric]) == pytest.approx(values.mean(), rel=1e-12)
            assert float(line[f"{metric} deviation"]) == pytest.approx(values.std(ddof=1), rel=1e-12)
        lows, highs = zip(*(one.intervals["recall@20"] for one in runs), strict=True)
        assert float(line["recall@20 low"]) == pytest.approx(np.mean(lows), rel=1e-12)
        assert float(line["recall@20 high"]) == pytest.approx(np.mean(highs), rel=1e-12)
        assert line["ndcg@20 low"] == ""
        assert float(line["train seconds"]) == pytest.approx(np.mean([one.train_seconds for one in runs]), rel=1e-12)


def test_markdown_has_the_best_of_each_metric_in_bold(tmp_path: Path) -> None:
    table = write(tmp_path, ROWS)
    lines = as_markdown(comparison(ROWS, [0, 1, 2]), table).splitlines()
    head, _, *body = (cells(line) for line in lines if line.startswith("|"))
    assert head[:5] == ["Row", "Seeds", "Recall@20", "Recall@10", "NDCG@20"]
    assert [line[0] for line in body] == ["BPR", r"In-batch \| \*improved\*", "Softmax"]
    for column, metric in [(2, "recall@20"), (3, "recall@10"), (4, "ndcg@20")]:
        means = [np.mean([run(row, seed).metrics[metric] for seed in (0, 1, 2)]) for row in ROWS]
        bold = [number for number, line in enumerate(body) if line[column].startswith("**")]
        assert bold == [int(np.argmax(means))]
        assert [line[column].strip("*").split(" ± ")[0] for line in body] == [f"{mean:.4f}" for mean in means]


def test_the_heading_says_data_split_budget_and_seeds(tmp_path: Path) -> None:
    table = write(tmp_path, ROWS)
    text = as_markdown(comparison(ROWS, [0, 1, 2]), table)
    assert text.startswith("# Losses\n")
    assert (
        "ml-1m, leave-one-out split; 900 steps (921,600 examples) per run; mean and standard deviation over 3" in text
    )
    assert "nfinished" not in text


def test_rows_with_seeds_missing_are_shown_as_such(tmp_path: Path) -> None:
    table = write(tmp_path, ROWS, finished=lambda row, seed: seed < row)
    assert [row.seeds for row in table.rows] == ["0 of 3", "1 of 3", "2 of 3"]
    assert [row.missing for row in table.rows] == [(0, 1, 2), (1, 2), (2,)]
    text = as_markdown(comparison(ROWS, [0, 1, 2]), table)
    assert text.count("Unfinished: 3 of 9 runs done") == 1
    assert "unfinished, 3 of 9 runs done" in subject(comparison(ROWS, [0, 1, 2]), table)
    body = [cells(line) for line in text.splitlines() if line.startswith("|")][2:]
    assert body[0][1:] == ["0 of 3", *["–"] * 6]
    assert body[1][2].strip("*") == f"{run(ROWS[1], 0).metrics['recall@20']:.4f}", "one seed has no deviation"
    first = next(csv.DictReader(io.StringIO(as_csv(table))))
    assert (first["seeds missing"], first["recall@20"], first["parameters"]) == ("0 1 2", "", "")


def test_a_budget_that_differs_is_told_as_a_range(tmp_path: Path) -> None:
    write(tmp_path, ["BPR"], [0, 1])
    save_result(tmp_path, run("BPR", 1, steps=1200, examples=1_000_000))
    about = subject(comparison(["BPR"], [0, 1]), read(tmp_path))
    assert "900 to 1,200 steps (921,600 to 1,000,000 examples) per run" in about


def test_best_names_ties_and_never_what_is_not_known() -> None:
    values = {"a": (0.1, 0.3), "b": (0.2,), "c": (), "d": (math.nan,)}
    assert best({name: MetricSummary(own) for name, own in values.items()}) == {"a", "b"}
    assert best({"c": MetricSummary(())}) == frozenset()


def test_strata_show_the_headline_or_what_they_have(tmp_path: Path) -> None:
    assert stratified_metric(write(tmp_path / "same", ["BPR"])) == "recall@20"
    assert stratified_metric(write(tmp_path / "other", ["BPR"], headline="ndcg@20")) == "recall@20"
    assert stratified_metric(write(tmp_path / "none", ["BPR"], finished=lambda row, seed: False)) == "recall@20"


@pytest.mark.parametrize(
    ("metric", "label"), [("recall@20", "Recall@20"), ("ndcg@10", "NDCG@10"), ("hit_rate@5", "Hit rate@5")]
)
def test_metrics_are_written_as_readers_know_them(metric: str, label: str) -> None:
    assert metric_label(metric) == label
