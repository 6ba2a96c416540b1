"""Random draws without a stored random state: each seed derives from the run's seed, a purpose and a position.

A restarted run repeats the draws of the killed run, and all ranks draw the same numbers.
"""

import struct
from enum import IntEnum

import torch
import xxhash

__all__ = ["Purpose", "derive", "generator", "seed_dropout"]


class Purpose(IntEnum):
    """Purpose of a draw; draws for different purposes are independent."""

    TOWER = 0
    ROWS = 1
    SHUFFLE = 2
    NEGATIVES = 3
    DROPOUT = 4
    EVALUATION = 5
    RESAMPLING = 6
    CACHE = 7
    SCORER = 8
    RESCORING = 9


def derive(seed: int, purpose: Purpose, *position: int) -> int:
    """Return a seed below 2^63 for one purpose at one position."""
    packed = struct.pack(f"<{2 + len(position)}q", seed, purpose, *position)
    return int(xxhash.xxh3_64_intdigest(packed) >> 1)


def generator(seed: int, purpose: Purpose, *position: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator on `device`, seeded by `derive`; a CPU and a GPU draw different numbers for the same seed."""
    return torch.Generator(device).manual_seed(derive(seed, purpose, *position))


def seed_dropout(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed the default generator of `device`, which dropout uses, for a step of a rank.

    `torch.manual_seed` would seed every device.
    """
    chosen = derive(seed, Purpose.DROPOUT, step, rank)
    if device.type == "cuda":
        torch.cuda.manual_seed(chosen)
    else:
        torch.default_generator.manual_seed(chosen)
