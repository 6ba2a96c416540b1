"""Softmax pass over the columns of a batch by fused GPU kernels (Triton) that never store the logits.

Results do not vary between runs: each sum has a fixed order. bfloat16 products are summed in float32; a float32
factor is split into three bfloat16 numbers and multiplied in six products, as exact as float32.
"""

# ruff: noqa: PLC0415 - Triton is part of torch's builds for CUDA only

import logging
import math
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from weir.trainer.losses.chunked import Plan, row_loss

__all__ = ["fused_pass", "is_fused"]

logger = logging.getLogger(__name__)

_LOG2_E: Final = 1 / math.log(2)
_WIDEST: Final = 128
"""Largest width of a vector: tiles of longer vectors do not fit on the chip."""
_PAIRS: Final = 256
"""Masked pairs that one program of `note_pairs` handles."""
_JOINED: Final = 16
"""Rows whose partial sums one program of `join_parts` joins."""
_RESIDENT: Final = 2
"""Programs resident on a multiprocessor at a time: one multiplies while the other computes powers."""


_PRECISION: Final = {torch.bfloat16: "ieee", torch.float32: "bf16x6"}


class _Kernel(NamedTuple):
    """Tile size (rows, columns), warps and pipeline stages of a kernel: the fastest settings tried on an H200."""

    rows: int
    columns: int
    warps: int
    stages: int


_ROWS: Final = {torch.bfloat16: _Kernel(64, 128, 4, 2), torch.float32: _Kernel(128, 64, 8, 1)}
_COLUMNS: Final = {torch.bfloat16: _Kernel(128, 64, 4, 2), torch.float32: _Kernel(64, 128, 8, 2)}


class _Batch(NamedTuple):
    """Queries (B, d), items (N, d), and `scale` and `bias` (N,) that turn inner products into exponents of 2."""

    query: Tensor
    items: Tensor
    bias: Tensor
    scale: float


class _Pairs(NamedTuple):
    """Bit mask of the pairs left out of the sum, in the layout described in `weir.trainer.losses.kernels`."""

    bits: Tensor
    dirty: Tensor


def is_fused(query: Tensor) -> bool:
    """Return whether the kernels support embeddings (B, d): GPU since Hopper, d <= 128, rows of whole 16 B."""
    width = query.shape[1]
    if not query.is_cuda or query.dtype not in _PRECISION or not 0 < width <= _WIDEST:
        return False
    is_aligned = width * query.element_size() % 16 == 0
    return is_aligned and torch.cuda.get_device_capability(query.device) >= (9, 0) and _is_ready()


@lru_cache
def _is_ready() -> bool:
    """Return whether Triton works on this machine: it compiles a launcher at first use, which may fail."""
    try:
        from triton.runtime import driver

        return bool(torch.version.cuda and driver.active.utils)
    except Exception as error:  # noqa: BLE001 - whatever it is, there is another way
        logger.warning("the softmax losses take logits in chunks, which is slower: Triton does not start: %s", error)
        return False


def fused_pass(
    query: Tensor, items: Tensor, pos: Tensor, plan: Plan, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return losses and gradients as described in `weir.trainer.losses.softmax._pass`, without memory for logits."""
    bias, scale = plan.column_bias * _LOG2_E, plan.scale * _LOG2_E
    batch = _Batch(query.detach().contiguous(), items.detach().contiguous(), bias, scale)
    masked = torch.zeros(len(query), dtype=torch.int64, device=query.device)
    of_rows = _marked(plan.hits.T, (len(query), len(items)), _ROWS[query.dtype].rows, (plan.times, masked))
    levels, means = _softmax(batch, of_rows)
    losses, pull = row_loss(levels / _LOG2_E - pos + plan.row_bias, plan.times.sum() - masked, plan.improved)
    if weight is None:
        return losses, torch.empty(0), torch.empty(0), -pull
    pull = pull * weight
    shares = plan.scale * pull
    of_columns = _marked(plan.hits.T.flip(0), (len(items), len(query)), _COLUMNS[query.dtype].columns, (None, None))
    return losses, means.mul_(shares[:, None]), _pulled_columns(batch, of_columns, levels, shares), -pull


def _marked(
    pairs: Tensor, shape: tuple[int, int], together: int, counted: tuple[Tensor, Tensor] | tuple[None, None]
) -> _Pairs:
    """Return the bit mask of `pairs` (2, H) in a matrix of this `shape`.

    A pair is a line, which has a mask, and a number, which has a bit in it: row and column, or the reverse. `together`
    lines share a dirty flag. `counted` has the weight of each number, and a tensor (by line) to which the weights of
    the pairs are added; or Nones.
    """
    from weir.trainer.losses.kernels import WORD, note_pairs

    words, device = _parts(shape[1], WORD.value), pairs.device
    bits = torch.zeros(shape[0], words, dtype=torch.int64, device=device)
    dirty = torch.zeros(_parts(shape[0], together), words, dtype=torch.int8, device=device)
    if count := pairs.shape[1]:
        grid = (_parts(count, _PAIRS),)
        note_pairs[grid](*pairs.contiguous(), bits, dirty, *counted, count, words, LINES=together, BLOCK=_PAIRS)
    return _Pairs(bits, dirty)


def _softmax(batch: _Batch, pairs: _Pairs) -> tuple[Tensor, Tensor]:
    """Return the binary logarithm of each row's softmax sum, (B,), and its softmax-weighted mean of items, (B, d)."""
    from weir.trainer.losses.kernels import join_parts, pull_rows

    (rows, width), columns, kernel = batch.query.shape, len(batch.items), _ROWS[batch.query.dtype]
    lines, span, parts = _division(rows, kernel.rows, columns, kernel.columns, batch.query.device)
    peaks, totals = batch.bias.new_empty(2, parts, rows)
    means = batch.bias.new_empty(parts, rows, width)
    pull_rows[lines, parts](
        *_blocks(batch, kernel), batch.bias, *pairs, peaks, totals, means,
        rows, columns, pairs.bits.shape[1], span, batch.scale, **_constants(batch.query, kernel),
    )  # fmt: skip
    levels, joined = batch.bias.new_empty(rows), batch.bias.new_empty(rows, width)
    join_parts[(_parts(rows, _JOINED),)](
        peaks, totals, means, levels, joined, rows, parts, WIDTH=width, D=_length(batch.query), ROWS=_JOINED
    )
    return levels, joined


def _pulled_columns(batch: _Batch, pairs: _Pairs, levels: Tensor, shares: Tensor) -> Tensor:
    """Return for each column (N, d) the sum of the queries, weighted by softmax and by the rows' `shares` (B,).

    `levels` (B,) are the binary logarithms of the rows' softmax sums.
    """
    from weir.trainer.losses.kernels import pull_columns

    (rows, width), columns, kernel = batch.query.shape, len(batch.items), _COLUMNS[batch.query.dtype]
    lines, span, parts = _division(columns, kernel.columns, rows, kernel.rows, batch.query.device)
    sums = batch.bias.new_empty(parts, columns, width)
    pull_columns[lines, parts](
        *_blocks(batch, kernel), batch.bias, *pairs, levels, shares, sums,
        rows, columns, pairs.bits.shape[1], span, batch.scale, **_constants(batch.query, kernel),
    )  # fmt: skip
    return sums[0] if parts == 1 else sums.sum(0)


def _division(lines: int, of_lines: int, numbers: int, of_numbers: int, device: torch.device) -> tuple[int, int, int]:
    """Return how to split lines x numbers over the GPU: blocks of lines, numbers per part, and parts of numbers.

    A tile has `of_lines` x `of_numbers` cells.
    """
    programs = _parts(lines, of_lines)
    most = max(_RESIDENT * _multiprocessors(device) // programs, 1)
    span = of_numbers * _parts(_parts(numbers, of_numbers), most)
    return programs, span, _parts(numbers, span)


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 1 for a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _blocks(batch: _Batch, kernel: _Kernel) -> tuple[Any, Any]:
    """Return the tensor descriptors of queries and items, read in blocks of a tile's rows and columns."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    length = _length(batch.query)
    query = TensorDescriptor.from_tensor(batch.query, [kernel.rows, length])
    return query, TensorDescriptor.from_tensor(batch.items, [kernel.columns, length])


def _constants(query: Tensor, kernel: _Kernel) -> dict[str, object]:
    """Return the compile-time constants of a kernel."""
    return {
        "WIDTH": query.shape[1],
        "D": _length(query),
        "TM": kernel.rows,
        "TN": kernel.columns,
        "PRECISION": _PRECISION[query.dtype],
        "num_warps": kernel.warps,
        "num_stages": kernel.stages,
    }


def _length(vectors: Tensor) -> int:
    """Return the smallest tile length for vectors (n, d): a power of 2, at least 16."""
    return max(1 << (vectors.shape[1] - 1).bit_length(), 16)


def _parts(whole: int, size: int) -> int:
    """Return the number of parts of this size that cover the whole."""
    return -(-whole // size)
