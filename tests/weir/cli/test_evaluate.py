from pathlib import Path

import pytest

from tests.weir.cli.interactions import TINY, refused, told, weir, write_circles

METRICS = {f"{name}@{k}" for name in ("recall", "ndcg", "precision", "coverage") for k in (5, 20)}
CASES = {"temporal": 30, "leave-one-out": 20, "random": 20}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_circles(tmp_path / "circles.parquet")


@pytest.mark.parametrize("split", CASES)
def test_every_split_is_learnt_and_tested_beside_popularity(data: Path, split: str) -> None:
    found = told(weir("evaluate", "--data", data, "--split", split, "--steps", "60", *TINY, "--json"))
    assert found["cases"] == CASES[split]
    for figures in (found["model"], found["popularity"]):
        assert set(figures["metrics"]) == METRICS
        assert all(0 <= value <= 1 for value in figures["metrics"].values())
        assert all(low <= high for low, high in figures["intervals"].values())
        assert sum(stratum["share"] for stratum in figures["strata"].values()) == pytest.approx(1)
    if split != "random":
        # All items are about as popular; what comes next is told by what came last.
        assert found["model"]["metrics"]["recall@5"] > 2 * found["popularity"]["metrics"]["recall@5"]


def test_a_seed_decides_what_is_told_and_options_change_it(data: Path) -> None:
    command = ["evaluate", "--data", str(data), "--steps", "5", *TINY, "--json"]
    first = told(weir(*command))
    assert told(weir(*command)) == first
    assert told(weir(*command, "--set", "trainer.seed=1"))["model"] != first["model"]
    assert told(weir(*command, "--cases", "7"))["cases"] == 7
    seen = told(weir(*command, "--keep-seen", "--index-top", "3"))
    assert seen["popularity"] != first["popularity"]


def test_what_is_not_measured_is_null(tmp_path: Path) -> None:
    data = write_circles(tmp_path / "one.parquet", user_id=["one"] * 300)
    found = told(weir("evaluate", "--data", data, "--steps", "2", *TINY, "--json"))
    assert found["model"]["intervals"]["recall@5"] == [None, None]


def test_a_reader_sees_tables(data: Path) -> None:
    result = weir("evaluate", "--data", data, "--steps", "3", *TINY)
    assert result.exit_code == 0, result.output
    for text in ("30 test cases", "95 % interval", "popularity", "recall@5", "coverage@20", "head", "torso", "tail"):
        assert text in result.stdout
    assert "nan" not in result.stdout.lower()


def test_data_that_cannot_be_used_is_told_in_a_line(tmp_path: Path, data: Path) -> None:
    missing = tmp_path / "missing.parquet"
    line = refused(weir("evaluate", "--data", missing), 1)
    assert f"{missing}: there is no such file; allowed are files, folders and globs of *.parquet" in line
    timeless = write_circles(tmp_path / "timeless.parquet", timestamp=[])
    assert "has no timestamps, which a temporal split needs" in refused(weir("evaluate", "--data", timeless), 1)
    line = refused(weir("evaluate", "--data", data, "--split", "labelled"), 1)
    assert "has no column 'split'" in line
    labels = write_circles(tmp_path / "labels.parquet", split=["train"] * 300)
    line = refused(weir("evaluate", "--data", labels, "--split", "labelled"), 1)
    assert "--split labelled leaves none of 300 interactions to test on" in line
    alone = write_circles(tmp_path / "alone.parquet", user_id=[f"user-{row}" for row in range(300)])
    assert "no user has two training interactions" in refused(weir("evaluate", "--data", alone), 1)


def test_a_loss_that_is_not_finite_is_told_in_a_line(data: Path) -> None:
    wild = ["--split", "random", "--set", "trainer.optimizer.embedding_learning_rate=1e30"]
    line = refused(weir("evaluate", "--data", data, "--steps", "20", *wild), 1)
    assert "try a lower learning rate or a higher temperature" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "sideways"], "Invalid value for '--split'"),
        (["-k", "0"], "Invalid value for '--k' / '-k': Input should be greater than or equal to 1"),
        (["--steps", "0"], "Invalid value for '--steps': Input should be greater than or equal to 1"),
        (["--index-top", "0"], "Invalid value for '--index-top': Input should be greater than or equal to 1"),
        (["--set", "trainer.tower.heads=3"], "heads = 3 does not divide dimension"),
        (["--set", "trainer.tower.kimd=sasrec"], "did you mean kind?"),
    ],
)
def test_wrong_usage_is_refused_before_any_work(arguments: list[str], message: str) -> None:
    result = weir("evaluate", "--data", "missing.parquet", *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
    assert weir("evaluate").exit_code == 2
