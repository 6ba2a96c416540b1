import shlex
from pathlib import Path

import pytest

from tests.weir.cli.interactions import TINY, told, weir, write_circles
from weir.cli import effort
from weir.text import program


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
