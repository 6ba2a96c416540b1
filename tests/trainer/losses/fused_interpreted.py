"""The kernels' pass against that in chunks, on the CPU: with ``TRITON_INTERPRET=1``, which Triton reads when it loads.

Prints the largest difference of each result, relative to the largest number of the one it is compared with.
"""

import json
import sys

import numpy as np
import torch
from torch import Tensor

from weir.trainer.losses import fused
from weir.trainer.losses.chunked import Plan, pass_in_chunks


def plan(draw: np.random.Generator, rows: int, columns: int, hits: int) -> Plan:
    pairs = np.stack([draw.integers(0, rows, hits), draw.integers(0, columns, hits)], 1)
    # A row without a single column, and the first and last bit of words.
    whole = np.stack([np.full(columns, rows - 1), np.arange(columns)], 1)
    edges = np.array([[0, one] for one in (0, 63, 64, 127, columns - 1) if one < columns])
    return Plan(
        hits=torch.from_numpy(draw.permutation(np.concatenate([pairs, pairs[:5], whole, edges]))),
        times=torch.from_numpy(draw.integers(1, 4, columns)),
        column_bias=torch.from_numpy(draw.normal(size=columns)).float(),
        row_bias=torch.from_numpy(draw.normal(size=rows)).float(),
        improved=hits % 100 == 0,
        scale=0.2,
        chunk_rows=16,
    )


def compared(seed: int, shape: tuple[int, int, int], hits: int) -> list[float]:
    (rows, columns, width), draw = shape, np.random.default_rng(seed)
    query, items = (torch.from_numpy(draw.normal(size=(size, width))).float() for size in (rows, columns))
    pos, weight = (torch.from_numpy(draw.normal(size=rows)).float() for _ in range(2))
    step = plan(draw, rows, columns, hits)
    found = fused.fused_pass(query, items, pos, step, weight)
    assert torch.equal(fused.fused_pass(query, items, pos, step, None)[0], found[0])
    return [difference(*pair) for pair in zip(found, pass_in_chunks(query, items, pos, step, weight), strict=True)]


def difference(mine: Tensor, other: Tensor) -> float:
    assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
    return float((mine - other).abs().max() / other.abs().max().clamp(min=1e-9))


def with_the_tiles_of(dtype: torch.dtype) -> list[list[float]]:
    """Compare at several shapes; products of float32 as such, for the interpreter knows no numbers of 16 bits."""
    fused._PRECISION[torch.float32] = "ieee"
    for kernels in (fused._ROWS, fused._COLUMNS):
        kernels[torch.float32] = kernels[dtype]
    shapes = {(70, 200, 16): 0, (1, 1, 4): 0, (200, 65, 40): 3000, (129, 257, 128): 400, (300, 31, 20): 50}
    return [compared(seed, shape, hits) for seed, (shape, hits) in enumerate(shapes.items())]


if __name__ == "__main__":
    json.dump([*with_the_tiles_of(torch.float32), *with_the_tiles_of(torch.bfloat16)], sys.stdout)
