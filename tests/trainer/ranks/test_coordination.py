"""Devices and their memory, workers and their exchanges, nodes that leave and ranks that are slow."""

import json
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import run_on_ranks
from weir.trainer.ranks.coordination import NodeLeftError, Pace, done_by_all, is_left_to_others, require_asked
from weir.trainer.ranks.workers import Workers, deterministic

STEPS = """
import ctypes, resource, sys
import numpy as np
from weir.trainer.ranks.device import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    return [np.ones(1 << 16) for _ in range(64)] and None

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages are small on every machine
if sys.argv[1] == "kept":
    keep_freed_memory()
step(), step()
before = faults()
step()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_a_step_gets_the_memory_of_the_one_before() -> None:
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", STEPS, how], check=True, stdout=subprocess.PIPE).stdout)
        for how in ("kept", "returned")
    )
    assert kept < 100
    assert returned > 1000


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with Workers.from_environment("cpu") as workers:
        assert (workers.rank, workers.world_size, workers.is_first) == (0, 1, True)
        assert workers.sum(torch.ones(2)).tolist() == [1, 1]
        assert workers.gather(torch.ones(2)).tolist() == [[1, 1]]
        assert workers.exchange(torch.ones(2), [2], [2]).tolist() == [1, 1]
        assert workers.broadcast("payload") == "payload"
        assert workers.share(6) == slice(0, 6)
        done: list[bool] = []
        workers.first(lambda: done.append(True))
        assert done == [True]


def test_torchrun_tells_a_process_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    workers = Workers.from_environment("cpu")
    assert (workers.rank, workers.world_size, workers.is_first) == (2, 4, False)
    assert workers.share(12) == slice(6, 9)


@given(ranks=st.integers(1, 9), more=st.integers(0, 100))
def test_shares_follow_one_another_and_differ_by_one_row_at_most(ranks: int, more: int) -> None:
    rows = range(ranks + more)
    shares = [rows[Workers(rank, ranks).share(len(rows))] for rank in range(ranks)]
    assert [row for share in shares for row in share] == list(rows)
    assert min(map(len, shares)) >= 1
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_batch_with_fewer_rows_than_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size = 2 leaves some of the 3 ranks without a row"):
        Workers(1, 3).share(2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device = cuda"):
        Workers.from_environment("cuda")


def test_determinism_is_asked_for_inside_only() -> None:
    before, filled = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
        # New memory is not written before it is used.
        assert not torch.utils.deterministic.fill_uninitialized_memory
    assert torch.get_deterministic_debug_mode() == before
    assert torch.utils.deterministic.fill_uninitialized_memory == filled


class LateQuestion(dist.HashStore):
    """A store in which rank 0 asks, and ends, just after somebody has looked for the first time."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self.workers, self.looked = workers, False

    def check(self, keys: list[str]) -> bool:
        found = super().check(keys)
        if not self.looked:
            self.looked = True
            self.set(self.workers._question(0), "clear")
            self.set(self.workers._done, "")
        return found


def test_a_question_that_comes_just_before_the_end_is_answered() -> None:
    workers, answered = Workers(rank=1, world_size=2), list[str]()
    workers._wait(LateQuestion(workers), answered.append)
    assert answered == ["clear"]


def signal(is_set: bool) -> Event:
    stop = Event()
    if is_set:
        stop.set()
    return stop


class Among(Workers):
    """A rank on one of several nodes, of which some are asked to stop; `first` says whether that of rank 0 is."""

    def __init__(self, rank: int, *, some: bool, first: bool) -> None:
        super().__init__(rank, 1)
        self._some, self._first = some, first

    @property
    def has_nodes(self) -> bool:
        return True

    def any(self, here: bool) -> bool:
        assert self._some or not here
        return self._some

    def broadcast(self, payload: object) -> object:  # type: ignore[override]
        return payload if self.is_first else self._first


@pytest.mark.parametrize(
    ("rank", "asked", "some", "first", "left"),
    [
        (0, False, True, False, True),
        (1, True, True, False, True),
        (0, True, True, True, False),
        (1, False, True, True, False),
        (0, False, False, False, False),
        (1, False, False, False, False),
    ],
)
def test_the_run_is_left_to_others_unless_the_first_node_is_asked(
    rank: int, asked: bool, some: bool, first: bool, left: bool
) -> None:
    workers = Among(rank, some=some, first=first)
    assert is_left_to_others(signal(is_set=asked), workers) == left
    if some and not asked:
        with pytest.raises(NodeLeftError, match="starts again without it"):
            require_asked(signal(is_set=asked), workers)
    else:
        require_asked(signal(is_set=asked), workers)


def test_one_node_stops_as_a_whole() -> None:
    assert not is_left_to_others(signal(is_set=True), Workers())
    require_asked(signal(is_set=False), Workers())


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


def test_work_that_is_done_is_done() -> None:
    done_by_all(Workers(), lambda: 3, 3)


def test_work_that_lacks_something_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ranks have done 2 items of 3: the log of a rank that failed says why"):
        done_by_all(Workers(), lambda: 2, 3)


def test_the_error_of_rank_0_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        done_by_all(Workers(), lambda: 1 // 0, 3)
