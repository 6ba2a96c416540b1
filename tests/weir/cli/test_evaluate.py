""""""

import re
import shlex
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.trainer.windows import WindowWriter
from tests.weir.cli.interactions import TINY, refused, told, weir, write_circles
from weir.cli import evaluate as effort
from weir.cli import evaluate as outcome
from weir.contracts import Store
from weir.text import program

METRICS = {f"{name}@{k}" for name in ("recall", "ndcg", "precision", "coverage") for k in (5, 20)}
PEERS = {
    *("popularity", "popularity of the last days", "item-kNN", "item-kNN with recency decay"),
    *("EASE", "EASE with recency decay"),
}
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
    assert found["peers"]["popularity"]["metrics"] == found["popularity"]["metrics"]
    missing = {"item-kNN with recency decay", "EASE with recency decay"} if split == "random" else set()
    assert set(found["left_out"]) == missing
    assert set(found["peers"]) == PEERS - missing
    for peer in found["peers"].values():
        lead = peer["differences"]["recall@20"]
        assert lead["mean"] == pytest.approx(found["model"]["metrics"]["recall@20"] - peer["metrics"]["recall@20"])
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


def test_figures_of_several_seeds_are_their_means(data: Path) -> None:
    command = ["evaluate", "--data", str(data), "--steps", "30", *TINY]
    alone = [told(weir(*command, "--json", "--set", f"trainer.seed={seed}")) for seed in (4, 5)]
    found = told(weir(*command, "--json", "--set", "trainer.seed=4", "--seeds", "2"))
    assert found["training"] == [alone[0]["training"][0], alone[1]["training"][0]]
    for name, value in found["model"]["metrics"].items():
        assert value == pytest.approx(np.mean([one["model"]["metrics"][name] for one in alone]))
    for name, peer in found["peers"].items():
        apart = [one["peers"][name]["differences"]["ndcg@20"]["mean"] for one in alone]
        assert peer["differences"]["ndcg@20"]["mean"] == pytest.approx(np.mean(apart))
        assert [one["mean"] for one in peer["differences_by_seed"]["ndcg@20"]] == pytest.approx(apart)
    result = weir(*command, "--seeds", "2", "--out", data.parent / "found")
    names = {f"{kind}-seed{seed}.parquet" for kind in ("items", "cases") for seed in (0, 1)}
    assert {path.name for path in (data.parent / "found").iterdir()} == names | {"ranks.parquet"}
    ranks = pq.read_table(data.parent / "found" / "ranks.parquet")
    assert set(ranks.column_names) >= {"case", "user_id", "item_id", "model, seed 0", "model, seed 1", *PEERS}
    assert "30 test cases, means of 2 seeds" in result.stdout
    assert sum(line.startswith("trained 30 steps") for line in result.stderr.splitlines()) == 2


def test_the_windows_of_a_store_are_a_log(tmp_path: Path, data: Path) -> None:
    table, store = pq.read_table(data).to_pydict(), tmp_path / "store"
    writer = WindowWriter(Store(str(store)))
    for rows in (slice(0, 130), slice(130, 300)):
        items = [str(item) for item in table["item_id"][rows]]
        writer.commit(table["user_id"][rows], items, 1000 * np.array(table["timestamp"][rows]))
    before = sorted(store.rglob("*"))
    found = [told(weir("evaluate", "--log", log, "--steps", "3", *TINY, "--json")) for log in (data, store)]
    assert found[0] == found[1]
    assert found[0]["cases"] == 30
    assert sorted(store.rglob("*")) == before


def test_what_is_not_measured_is_null(tmp_path: Path) -> None:
    data = write_circles(tmp_path / "one.parquet", user_id=["one"] * 300)
    found = told(weir("evaluate", "--data", data, "--steps", "2", *TINY, "--json"))
    assert found["model"]["intervals"]["recall@5"] == [None, None]


def test_a_reader_sees_tables(data: Path) -> None:
    result = weir("evaluate", "--data", data, "--steps", "3", *TINY)
    assert result.exit_code == 0, result.output
    for text in ("30 test cases", "95 % interval", "recall@5", "coverage@20", "head", "torso", "tail", *PEERS):
        assert text in result.stdout
    for metric in ("recall@20", "ndcg@20"):
        assert f"\n{metric}: the model is " in result.stdout
    assert "nan" not in result.stdout.lower()


def test_peers_that_cannot_be_asked_are_named_with_the_reason(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "_QUICK_PEERS", 39)
    lines = weir("evaluate", "--quick", "--data", data, "--steps", "1", *TINY).stdout.splitlines()
    for name in ("item-kNN", "item-kNN with recency decay", "EASE", "EASE with recency decay"):
        assert f"left out: {name}: 40 items in training; a matrix of items by items is made of at most 39" in lines


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
    alone = write_circles(tmp_path / "alone.parquet", rows=1200, user_id=[f"user-{row}" for row in range(1200)])
    result = weir("evaluate", "--data", alone)
    assert (result.exit_code, result.stdout) == (1, "")
    facts, line = result.stderr.splitlines()
    assert facts.endswith("960 to train on, 120 to validate, 120 to test")
    assert line.startswith(f"weir: {alone}: no user has two training interactions")


def test_a_loss_that_is_not_finite_is_told_in_a_line(data: Path) -> None:
    wild = ["--split", "random", "--set", "trainer.optimizer.embedding_learning_rate=1e30"]
    result = weir("evaluate", "--data", data, "--steps", "20", *wild)
    assert (result.exit_code, result.stdout) == (1, "")
    facts, line = result.stderr.splitlines()
    assert facts.startswith(f"{data}: 300 interactions, 20 users, 40 items; ")
    assert line.startswith("weir: the loss is ")
    assert line.endswith("try a lower learning rate or a higher temperature (--debug shows where)")


def write_shop(path: Path, rows: int) -> Path:
    """Write circles as a shop would export them."""
    row = np.arange(rows)
    columns = {
        "Customer": row % 60,
        "Article": [f"A-{article}" for article in (5 * (row % 60) + row // 60) % 40],
        "Ordered At": [(datetime(2025, 3, 1) + timedelta(minutes=7 * int(one))).isoformat(" ") for one in row],
    }
    form = pa.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ";")
    pa.csv.write_csv(pa.table(columns), path, form)
    return path


SHOP = [
    *("pipeline.columns.user_id=Customer", "pipeline.columns.item_id=Article"),
    *("pipeline.columns.timestamp=Ordered At", "pipeline.time_zone=UTC"),
]


@pytest.mark.parametrize("name", ["shop.csv", "shop.tsv"])
def test_a_log_is_read_as_check_and_up_read_it(tmp_path: Path, name: str) -> None:
    log = write_shop(tmp_path / name, 1200)
    report = told(weir("check", log, "--json"), status=1)
    assert report["settings"] == SHOP
    # Unless told how, it says how.
    result = weir("evaluate", "--log", log)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "these settings read 100 % of it:" in result.stderr
    command = result.stderr.splitlines()[-1].split(maxsplit=2)
    assert (Path(command[0]).name, command[1]) == ("weir", "evaluate")
    found = told(weir("evaluate", *shlex.split(command[2]), "--quick", "--steps", "40", *TINY, "--json"))
    assert found["cases"] == 120
    # The file of `weir init` says the same.
    config = tmp_path / "weir.yaml"
    config.write_text(weir("init", log).stdout)
    again = ["evaluate", "--log", log, "--config", config, "--quick", "--steps", "40", *TINY, "--json"]
    assert told(weir(*again)) == found


def test_a_verdict_says_whether_the_difference_is_more_than_chance(tmp_path: Path) -> None:
    log = write_shop(tmp_path / "shop.csv", 1200)
    shop = [part for one in SHOP for part in ("--set", one)]
    tiny = [part if part != "20" else "10" for part in TINY]
    good = weir("evaluate", "--log", log, *shop, "--steps", "100", *tiny, "--json")
    found = told(good)
    lead = found["difference"]
    assert lead["metric"] == "recall@10"
    difference = found["model"]["metrics"]["recall@10"] - found["popularity"]["metrics"]["recall@10"]
    assert lead["mean"] == pytest.approx(difference)
    assert 0 < lead["low"] < lead["mean"] < lead["high"]
    assert found["verdict"].startswith("the model is better than popularity: recall@10 ")
    assert found["verdict"].endswith("over 120 test cases of 60 users, which excludes 0")
    [training] = found["training"]
    best = max(point["metrics"]["recall@10"] for point in training["curve"])
    [kept] = [point for point in training["curve"] if point["step"] == training["best_step"]]
    assert kept["metrics"]["recall@10"] == best
    assert "kept step" in good.stderr
    assert "nothing to read" not in good.stderr
    people = weir("evaluate", "--log", log, *shop, "--steps", "100", *tiny)
    assert people.stdout.splitlines()[-1] == found["verdict"]
    strongest = max(found["peers"], key=lambda name: found["peers"][name]["metrics"]["recall@10"])
    assert f"\nthe strongest is {strongest}: " in people.stdout


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 12, 40])
@pytest.mark.parametrize("split", CASES)
def test_a_small_log_is_no_failure(tmp_path: Path, rows: int, split: str) -> None:
    log = write_circles(tmp_path / "few.parquet", rows=rows)
    command = ["evaluate", "--log", log, "--split", split, "--steps", "3", *TINY]
    found = told(weir(*command, "--json"))
    assert found["verdict"].startswith(f"too small to judge: {rows} events, 1,000 are enough; ")
    assert found["verdict"] in weir(*command).stdout


def test_as_many_events_as_are_enough_are_judged(tmp_path: Path) -> None:
    for rows, is_small in ((999, True), (1000, False)):
        log = write_circles(tmp_path / "circles.parquet", rows=rows)
        verdict = told(weir("evaluate", "--quick", "--log", log, "--steps", "3", *TINY, "--json"))["verdict"]
        assert verdict.startswith(f"too small to judge: {rows} events, ") == is_small


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


@pytest.mark.parametrize("new", [0, 5, 40])
def test_a_test_of_new_items_alone_cannot_be_judged(new: int, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    items = [n % 11 for n in range(400 - new)] + [100 + n for n in range(new)]
    rows = (f"u{n * 7 % 30},i{item},{1_700_000_000 + n}" for n, item in enumerate(items))
    log.write_text("user_id,item_id,timestamp\n" + "\n".join(rows) + "\n")
    found = told(weir("evaluate", "--data", log, "--steps", "5", *TINY, "--json"))
    assert found["new_items"] == new / 40
    assert ("cannot be judged: all 40 test cases ask for new items" in found["verdict"]) is (new == 40)
    shown = weir("evaluate", "--data", log, "--steps", "5", *TINY).stdout
    share = {
        0: "",
        5: "12.5 % of what the test cases ask for is new",
        40: "100 % of what the test cases ask for is new",
    }
    assert share[new] in shown
    assert ("is new" in shown) is (new > 0)


def test_a_quick_answer_says_what_it_sampled_and_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effort, "_QUICK_ROWS", 1100)
    monkeypatch.setattr(effort, "_QUICK_INTERACTIONS", 1040)
    monkeypatch.setattr(effort, "_QUICK_SCORES", 1)
    monkeypatch.setattr(effort, "_LEAST_CASES", 50)
    log = write_circles(tmp_path / "circles.parquet", rows=1200)
    result = weir("evaluate", "--quick", "--log", log, "--steps", "3", *TINY)
    assert result.exit_code == 0, result.output
    sampled = (
        "sampled: the last 1,100 rows of the log; 18 of 20 users, at random, with 990 of 1,100 interactions; "
        "50 of 99 test cases, at random"
    )
    assert sampled in result.stderr.splitlines()
    assert "50 test cases" in result.stdout
    wanted = shlex.join(["--log", str(log), *TINY[:-4]])
    assert result.stdout.splitlines()[-2:] == [f"next: {program()} evaluate {wanted}", f"  or: {program()} up {wanted}"]
    told_more = told(weir("evaluate", "--log", log, "--steps", "3", *TINY, "--json"))
    assert (told_more["sampled"], told_more["cases"]) == ([], 120)


def test_a_quick_answer_comes_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "_QUICK_SECONDS", 0.0)
    monkeypatch.setattr(effort, "_LEAST_SECONDS", 0.0)
    log = write_circles(tmp_path / "circles.parquet", rows=1200)
    found = told(weir("evaluate", "--quick", "--log", log, *TINY, "--json"))
    assert [(one["ended"], one["steps"]) for one in found["training"]] == [("seconds", 1)]


def test_without_a_terminal_progress_is_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_circles(tmp_path / "circles.parquet")
    monkeypatch.setattr(outcome, "PLAIN_SECONDS", 0.0)
    result = weir("evaluate", "--log", data, "--steps", "25", *TINY, "--json")
    facts, *lines, end = result.stderr.splitlines()
    lines, tuned = lines[:25], lines[25:]
    assert facts == f"{data}: 300 interactions, 20 users, 40 items; 240 to train on, 30 to validate, 30 to test"
    form = r"evaluate: .* left at most, step (\d+) of 25, epoch \d+\.\d, loss \d+\.\d{3}(; best on validation: .*)?"
    matches = [re.fullmatch(form, line) for line in lines]
    assert [match and int(match[1]) for match in matches] == list(range(1, 26))
    assert "; best on validation: recall@20 " in lines[-1]
    peers = ("popularity of the last days", "item-kNN", "EASE")
    assert tuned == [f"evaluate: tuning {peer} on validation, to compare with" for peer in peers]
    assert re.fullmatch(r"trained 25 steps, .* epochs, all that --steps allows; kept step \d+: recall@20 .*", end)


@pytest.mark.parametrize(
    ("more", "end"),
    [
        (["--steps", "1"], "trained 1 steps, 0.3 epochs, all that --steps allows; kept step 1: recall@20 "),
        (["--split", "labelled", "--steps", "2"], "there is no validation part to stop by"),
        (["--patience", "1"], "until 1 validations in a row were no better; kept step "),
    ],
)
def test_the_end_of_training_is_told(tmp_path: Path, more: list[str], end: str) -> None:
    labels = ["train"] * 240 + ["test"] * 60
    data = write_circles(tmp_path / "circles.parquet", split=labels)
    result = weir("evaluate", "--log", data, *TINY, "--steps", "200", *more)
    assert result.exit_code == 0, result.output
    assert end in result.stderr.splitlines()[-1]
    assert ("it still got better: allow more --steps" in result.stderr) == (more == ["--steps", "1"])
