import threading
from collections.abc import Iterator

import pytest
import torch

from tests.trainer.step.test_batches import dealt
from weir.trainer.step.ahead import ahead
from weir.trainer.step.batches import Batch

CPU = torch.device("cpu")


def test_batches_come_in_their_order() -> None:
    found = list(ahead(iter(dealt(23, 4)), CPU))
    for one, other in zip(found, dealt(23, 4), strict=True):
        assert all(torch.equal(mine, wanted) for mine, wanted in zip(one, other, strict=True))


def test_the_next_is_made_while_one_is_used() -> None:
    made = [threading.Event() for _ in range(3)]

    def making() -> Iterator[Batch]:
        for event, batch in zip(made, dealt(12, 4), strict=True):
            event.set()
            yield batch

    found = ahead(making(), CPU)
    next(found)
    assert made[1].wait(60)
    assert not made[2].is_set()  # one ahead, no more: a batch takes memory
    next(found)
    assert made[2].wait(60)


def test_what_making_a_batch_raises_comes_in_its_place() -> None:
    def making() -> Iterator[Batch]:
        yield dealt(4, 4)[0]
        raise OSError("the disk is full")

    found = ahead(making(), CPU)
    next(found)
    with pytest.raises(OSError, match="the disk is full"):
        next(found)


def test_the_thread_ends_with_the_generator() -> None:
    before = set(threading.enumerate())
    found = ahead(iter(dealt(40, 4)), CPU)
    next(found)
    (thread,) = set(threading.enumerate()) - before
    found.close()
    assert not thread.is_alive()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_for_a_gpu_batches_are_pinned() -> None:
    for batch in ahead(iter(dealt(8, 4)), torch.device("cuda")):
        assert all(tensor.is_pinned() for tensor in batch if tensor.numel())
