"""Passes over the windows of a store, and the table and the picture of what they found."""

from pathlib import Path

import msgspec
import pytest
import typer

from benchmarks import stream_towers
from benchmarks.stream_towers import Pass, config_of, draw_all, passed
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store


def test_a_tower_is_named_with_its_layers() -> None:
    config = config_of("hstu:2", 64, 3)
    assert (config.tower.kind, config.tower.layers, config.batch_size, config.seed) == ("hstu", 2, 64, 3)
    assert config_of("sasrec", 64, 0).tower.layers == 1


@pytest.mark.parametrize("tower", ["nothing", "hstu:two", "hstu:0"])
def test_a_tower_that_there_is_not_is_named(tower: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"tower '{tower}', batch 64: "):
        config_of(tower, 64, 0)


def test_a_pass_tests_before_it_learns_and_names_what_it_was(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    synthetic(WindowWriter(store), windows=3, events=60)
    found = passed(store, "a log", config_of("mean_pooling:2", 16, 0), 10)
    assert (found.log, found.tower, found.batch) == ("a log", "mean_pooling:2", 16)
    assert 0 <= found.ndcg <= found.recall <= 1
    assert found.cpu > 0


def test_results_of_seeds_are_one_line_of_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recall = {("recency", 0): 0.2, ("recency", 1): 0.3, ("hstu", 0): 0.1}
    passes = [Pass("log", tower, 128, seed, value, value / 2, 10.0) for (tower, seed), value in recall.items()]
    passes.insert(0, Pass("log", "recency", 128, 1, 0.9, 0.9, 99.0))  # measured again later
    results, picture = tmp_path / "towers.jsonl", tmp_path / "towers.png"
    results.write_bytes(msgspec.json.Encoder().encode_lines(passes))
    draw_all(results, picture)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        "| log | `hstu` | 128 | 1 | 0.1000 | 0.0500 | 10.0 |",
        "| log | `recency` | 128 | 2 | 0.2500 | 0.1250 | 10.0 |",
    ]
    assert picture.stat().st_size > 10_000
    assert stream_towers.SAVED.exists()
