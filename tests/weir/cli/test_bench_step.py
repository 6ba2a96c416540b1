from pathlib import Path

import pytest

from tests.trainer.windows import WindowWriter, synthetic
from tests.weir.cli.interactions import refused, told, weir
from weir.contracts import Store

SMALL = [
    *("--set", "trainer.tower.dimension=8", "--set", "trainer.tower.history_length=5"),
    *("--set", "trainer.negatives.uniform=8", "--set", "trainer.device=cpu"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = Store(str(tmp_path_factory.mktemp("store")))
    synthetic(WindowWriter(store), windows=2)
    return store.url


def test_parts_stand_beside_what_no_step_can_do_without(store: str) -> None:
    printed = weir("bench", "step", "--store", store, "--batch", "16", "--batch", "64", "--steps", "4", *SMALL)
    assert printed.exit_code == 0, printed.output
    for text in ("recency, sampled_softmax", "16", "64", "accidental hits", "tower alone", "three products alone"):
        assert text in printed.stdout
    [line] = [line for line in printed.stdout.splitlines() if "step / (tower + products)" in line]
    assert all(float(ratio) > 1 for ratio in line.split()[-2:])


def test_programs_read_every_figure(store: str) -> None:
    found = told(weir("bench", "step", "--store", store, "--batch", "16", "--steps", "3", *SMALL, "--json"))
    [cost] = found["steps"]
    assert (cost["batch_size"], cost["steps"]) == (16, 3)
    assert cost["ratio"] > 1
    assert set(cost["parts"]) == {"draw", "rows", "hits", "tower", "loss", "backward", "sum", "update"}


def test_what_cannot_be_measured_is_said(store: str, tmp_path: Path) -> None:
    line = refused(weir("bench", "step", "--store", tmp_path), 1)
    assert "holds no window yet: `weir ingest` commits them" in line
    line = refused(weir("bench", "step", "--store", store, "--batch", "5000", *SMALL), 1)
    assert "batches of 5000 examples, at least 3 are needed: set a smaller batch, or ingest more" in line
