"""The next batch is made while one is trained on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from weir.trainer.step.batches import Batch

__all__ = ["ahead"]


def ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield what `batches` yields, of which a thread makes the next; for a GPU in pinned memory.

    What making one raises comes in its place. The thread ends with this generator.
    """

    def make() -> Batch | None:
        batch = next(batches, None)
        return batch.pinned() if batch is not None and device.type == "cuda" else batch

    with ThreadPoolExecutor(1, "batches") as thread:
        waiting = thread.submit(make)
        while (batch := waiting.result()) is not None:
            waiting = thread.submit(make)
            yield batch
