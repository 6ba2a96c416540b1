"""Batch prefetch: a thread builds the next batch during a step."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from weir.trainer.step.batches import Batch

__all__ = ["ahead"]


def ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the items of `batches`, each built by a thread in advance; for a GPU in pinned memory.

    An error in building a batch is raised in its place. The thread ends with this generator.
    """

    def make() -> Batch | None:
        batch = next(batches, None)
        return batch.pinned() if batch is not None and device.type == "cuda" else batch

    with ThreadPoolExecutor(1, "batches") as thread:
        waiting = thread.submit(make)
        while (batch := waiting.result()) is not None:
            waiting = thread.submit(make)
            yield batch
