"""The rank that others wait for is the one that takes long."""

import json
import socket
import time
from pathlib import Path

from tests.ranks import run_on_ranks
from weir.trainer.ranks.pace import Pace
from weir.trainer.ranks.workers import Workers

SCRIPT = Path(__file__).with_name("pace_of_ranks.py")


def test_ranks_hear_which_of_them_is_slow(tmp_path: Path) -> None:
    run_on_ranks(2, SCRIPT, str(tmp_path), "0.2")
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first["nodes"] == [socket.gethostname()] * 2
    assert first["any"] == [True, False]
    # A group whose threads outlive it may take the process down at its end.
    assert first["left"] == []
    for quick, slow in first["told"]:
        assert slow >= 0.2
        assert quick < slow / 2


def test_a_rank_alone_waits_for_nobody() -> None:
    pace = Pace(Workers())
    for _ in range(2):
        with pace.step():
            time.sleep(0.02)
    [mean] = pace.of_ranks()
    assert mean >= 0.02
    assert pace.of_ranks() == [0]
