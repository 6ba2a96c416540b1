"""The GPU check at small sizes on the CPU: the same code, so that it works on the day that there is a GPU."""

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.gpu_check import SMALL, _best, app


def test_it_measures_every_part_and_reports_it_twice(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--device", "cpu", "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "gpu-check.json").read_text())
    assert (report["status"], report["failures"]) == ("passed", {})
    assert set(report["figures"]) == {
        "limits",
        "serving: exact search with torch",
        "serving: FAISS as the server uses it",
        "training: loss",
        "training: the other parts of a step",
        "training: evaluation",
    }
    figures = [figure for part in report["figures"].values() for figure in part]
    assert all(math.isfinite(figure["value"]) and figure["value"] > 0 for figure in figures)
    recalls = {figure["what"]: figure["value"] for figure in figures if "recall" in figure["what"]}
    assert min(recalls.values()) >= 0.95
    page = (tmp_path / "gpu-check.md").read_text()
    assert all(figure["what"] in page for figure in figures)
    assert "no figures to quote" in page


def test_the_search_in_chunks_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu_check._CHUNK", 700)
    draw = torch.Generator().manual_seed(1)
    items, queries = (torch.randn(count, SMALL.dimension, generator=draw) for count in (3000, 9))
    found, whole = _best(items, queries, 100), (queries @ items.T).topk(100)
    torch.testing.assert_close(found.values, whole.values)
    assert torch.equal(found.indices, whole.indices)


def test_a_part_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr("benchmarks.gpu_check.loss", broken)
    done = CliRunner().invoke(app, ["--device", "cpu", "--folder", str(tmp_path)])
    assert done.exit_code == 1
    assert "**training: loss failed:** RuntimeError: no kernel image is available" in done.output
    assert len(json.loads((tmp_path / "gpu-check.json").read_text())["figures"]) == 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_ends_well(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--folder", str(tmp_path)])
    assert done.exit_code == 0
    assert done.output.startswith("# GPU check: skipped: torch finds no CUDA device")
    assert json.loads((tmp_path / "gpu-check.json").read_text())["device"] == "none"
