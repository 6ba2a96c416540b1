""""""

import csv
import json
from pathlib import Path

import pytest

from tests.trainer.windows import WindowWriter, synthetic
from tests.weir.cli.interactions import TINY, refused, told, weir, write_circles
from weir.contracts import Store
from weir.trainer.offline.results import load_comparison, load_results, result_name

ROWS = "uniform, none; BPR"
SMALL = ["--rows", ROWS, "--seeds", "2", "--steps", "6", *TINY]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_circles(tmp_path_factory.mktemp("data") / "circles.parquet")


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a comparison that has lost one of its runs, and was started again."""
    out = tmp_path_factory.mktemp("out")
    whole = weir("bench", "losses", "--data", data, "--out", out, *SMALL)
    assert whole.exit_code == 0, whole.output
    runs = [f"run {number} of 4: {run}" for number, run in enumerate(RUNS, 1)]
    assert [line for line in whole.stderr.splitlines() if line.startswith("run ")] == runs
    assert all(text in whole.stdout for text in ("uniform, none", "BPR", f"the whole report: {out / 'report.html'}"))
    return out


RUNS = [f"{row}, seed {seed}" for seed in (0, 1) for row in ("uniform, none", "BPR")]


def test_a_comparison_leaves_its_runs_and_a_report(finished: Path, data: Path) -> None:
    comparison = load_comparison(finished)
    assert (comparison.rows, comparison.seeds) == (("uniform, none", "BPR"), (0, 1))
    assert (comparison.split, comparison.headline, comparison.cutoffs) == ("temporal", "recall@20", (5, 20))
    assert comparison.data == f"{data.parent.name}/circles.parquet"
    facts = {"users": 20, "items": 40, "train": 240, "validation": 30, "test": 30}
    assert facts.items() <= comparison.facts.items()
    results = load_results(finished, comparison)
    assert len(results) == 4
    assert all(result.steps == 6 and result.curve[-1].step == 6 for result in results.values())
    table = list(csv.DictReader((finished / "table.csv").open()))
    assert len(table) == 2
    for row in comparison.rows:
        assert row in (finished / "report.html").read_text()


def test_only_what_is_missing_runs_again(finished: Path, data: Path) -> None:
    lost = finished / result_name("BPR", 0)
    before = {path.name: path.stat().st_mtime_ns for path in finished.glob("*-seed*.json")}
    metrics = json.loads(lost.read_text())["metrics"]
    lost.unlink()
    again = weir("bench", "losses", "--data", data, "--out", finished, *SMALL, "--json")
    assert told(again) == {"report": str(finished / "report.html"), "table": str(finished / "table.csv")}
    assert [line for line in again.stderr.splitlines() if line.startswith("run ")] == ["run 1 of 1: BPR, seed 0"]
    assert json.loads(lost.read_text())["metrics"] == metrics
    for name, time in before.items():
        assert ((finished / name).stat().st_mtime_ns == time) == (name != lost.name)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--steps", "7"], "row BPR, row uniform, none differ"),
        (["--split", "leave-one-out"], "split, facts"),
        (["--cases", "5"], "facts differ"),
        (["--keep-seen"], "facts differ"),
        (["--index-top", "9"], "facts differ"),
        (["-k", "9"], "cutoffs differ"),
        (["--set", "trainer.tower.layers=2"], "row BPR, row uniform, none differ"),
    ],
)
def test_another_comparison_is_not_mixed_in(finished: Path, data: Path, arguments: list[str], named: str) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    line = refused(weir("bench", "losses", "--data", data, "--out", finished, *SMALL, *arguments), 1)
    assert f"{finished} holds another comparison: " in line
    assert named in line
    assert line.endswith("choose another --out, or remove the folder")
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "BPRR"], "--rows = 'BPRR': no such row or family; allowed: all, softmax, resampling"),
        (["--headline", "recall@50"], "--headline = 'recall@50': is not measured; with these --k allowed: recall@10"),
        (["--headline", "hits@20"], "'hits@20': is not measured; with these --k allowed: recall@10, recall@20"),
        (["--headline", "recall"], "precision@20, precision@100, coverage@10"),
        (["-k", "5"], "--headline = 'recall@20': is not measured; with these --k allowed: recall@5, ndcg@5"),
    ],
)
def test_wrong_usage_is_refused_before_any_work(tmp_path: Path, arguments: list[str], message: str) -> None:
    out = tmp_path / "out"
    line = refused(weir("bench", "losses", "--data", tmp_path / "missing.parquet", "--out", out, *arguments), 2)
    assert message in line
    assert not out.exists()


def test_data_that_cannot_be_used_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = refused(weir("bench", "losses", "--data", tmp_path / "missing.parquet", "--out", out), 1)
    assert "missing.parquet: there is no such file" in line
    assert not out.exists()


def test_runs_go_on_until_validation_gets_no_better(tmp_path: Path, data: Path) -> None:
    out, limits = tmp_path / "out", ["--seeds", "1", "--steps", "2000", "--patience", "2", "--headline", "recall@5"]
    arguments = ["--data", data, "--out", out, "--rows", "uniform, none", *limits, *TINY]
    told(weir("bench", "losses", *arguments, "--set", "trainer.optimizer.learning_rate=0.1", "--json"))
    comparison = load_comparison(out)
    assert comparison.title == "1 losses, each until 2 validations in a row were no better, at most 2,000 steps"
    result = load_results(out, comparison)["uniform, none", 0]
    points = {point.step: point.metrics["recall@5"] for point in result.curve}
    assert result.steps == max(points) < 2000
    assert points[result.best_step] == max(points.values())
    assert len([step for step in points if step > result.best_step]) == 2


def test_without_validation_there_is_no_patience(tmp_path: Path) -> None:
    data = write_circles(tmp_path / "circles.parquet", split=["train"] * 270 + ["test"] * 30)
    arguments = ["--data", data, "--split", "labelled", "--out", tmp_path / "out", "--patience", "2"]
    line = refused(weir("bench", "losses", *arguments), 2)
    assert "--patience = 2: --split labelled leaves nothing for validation; use --steps" in line


@pytest.mark.parametrize("split", ["leave-one-out", "random", "labelled"])
def test_every_split_can_be_compared_on(tmp_path: Path, split: str) -> None:
    """The labelled one has no validation: its curve has no figures, its report is written all the same."""
    data = write_circles(tmp_path / "circles.parquet", split=["train"] * 270 + ["test"] * 30)
    row = ["--rows", "In-Batch", "--seeds", "1", "--steps", "3", "--headline", "ndcg@5"]
    told(weir("bench", "losses", "--data", data, "--split", split, "--out", tmp_path / "out", *row, *TINY, "--json"))
    result = load_results(tmp_path / "out", load_comparison(tmp_path / "out"))["In-Batch", 0]
    assert 0 <= result.metrics["ndcg@5"] <= 1
    assert len(result.curve) == (0 if split == "labelled" else 3)
    assert (tmp_path / "out" / "report.html").exists()


STEP_OPTIONS = [
    *("--set", "trainer.tower.dimension=8", "--set", "trainer.tower.history_length=5"),
    *("--set", "trainer.negatives.uniform=8", "--set", "trainer.device=cpu"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = Store(str(tmp_path_factory.mktemp("store")))
    synthetic(WindowWriter(store), windows=2)
    return store.url


def test_parts_stand_beside_what_no_step_can_do_without(store: str) -> None:
    printed = weir("bench", "step", "--store", store, "--batch", "16", "--batch", "64", "--steps", "4", *STEP_OPTIONS)
    assert printed.exit_code == 0, printed.output
    for text in ("recency, sampled_softmax", "16", "64", "accidental hits", "tower alone", "three products alone"):
        assert text in printed.stdout
    [line] = [line for line in printed.stdout.splitlines() if "step / (tower + products)" in line]
    assert all(float(ratio) > 1 for ratio in line.split()[-2:])


def test_programs_read_every_figure(store: str) -> None:
    found = told(weir("bench", "step", "--store", store, "--batch", "16", "--steps", "3", *STEP_OPTIONS, "--json"))
    [cost] = found["steps"]
    assert (cost["batch_size"], cost["steps"]) == (16, 3)
    assert cost["ratio"] > 1
    assert set(cost["parts"]) == {"draw", "rows", "hits", "tower", "loss", "backward", "sum", "update"}


def test_what_cannot_be_measured_is_said(store: str, tmp_path: Path) -> None:
    line = refused(weir("bench", "step", "--store", tmp_path), 1)
    assert "holds no window yet: `weir ingest` commits them" in line
    line = refused(weir("bench", "step", "--store", store, "--batch", "5000", *STEP_OPTIONS), 1)
    assert "batches of 5000 examples, at least 3 are needed: set a smaller batch, or ingest more" in line
