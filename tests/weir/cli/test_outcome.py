import re
from pathlib import Path

import pytest

from tests.weir.cli.interactions import TINY, weir, write_circles
from weir.cli import outcome


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
