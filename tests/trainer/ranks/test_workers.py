import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.ranks.workers import Workers, deterministic


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
