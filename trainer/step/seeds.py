"""Random draws without a random state: each derives from the seed, its purpose and the position in the stream.

A run that was killed draws again what it would have drawn, and all ranks draw the same.
"""

import struct
from enum import IntEnum

import torch
import xxhash

__all__ = ["Purpose", "derive", "generator", "seed_dropout"]


class Purpose(IntEnum):
    """What a draw is for; draws for different purposes are independent."""

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
    """Return a generator on `device` that is seeded by `derive`; another kind of device draws other numbers."""
    return torch.Generator(device).manual_seed(derive(seed, purpose, *position))


def seed_dropout(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed the generator that layers on a device draw from; `torch.manual_seed` would seed those of all devices."""
    chosen = derive(seed, Purpose.DROPOUT, step, rank)
    if device.type == "cuda":
        torch.cuda.manual_seed(chosen)
    else:
        torch.default_generator.manual_seed(chosen)
