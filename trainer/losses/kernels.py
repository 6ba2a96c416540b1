"""Triton kernels of the softmax over the columns of a batch: logits are computed in tiles and never stored.

`pull_rows` is the forward pass of tiled attention with the columns as keys and values: its output is the
softmax-weighted mean of the columns. `pull_columns` is its transpose, with the softmax sums of `pull_rows`. Both
compute the logits, which is cheaper than storing them.

A tile is TM rows x TN columns, and D is at least the width of the vectors. Queries and items are tensor descriptors of
blocks (TM, D) and (TN, D), which read as 0 beyond the end. Exponents have base 2, as in the hardware.

Pairs left out of the sum are marked in a bit mask: word w of a line (a row or a column) has the bits of the numbers
64 w to 64 w + 63. A `dirty` flag of a group of lines and a word tells whether any bit is set, which is rare.

Source: Dao et al., "FlashAttention", arXiv 2205.14135.
"""

# ruff: noqa: N803, PLR0917 - Triton: constants are upper case, and a kernel takes its arguments one by one

import triton
import triton.language as tl

WORD: tl.constexpr = tl.constexpr(64)
"""Bits of a word."""
TINY: tl.constexpr = tl.constexpr(2.0**-126)
"""Lower bound of a row's sum, so that the sum of a row without columns has a finite logarithm."""


@triton.jit
def note_pairs(line, number, bits, dirty, times, gone, pairs, words, LINES: tl.constexpr, BLOCK: tl.constexpr):
    """Set the bit of each (line, number) pair; per distinct pair, add `times` of the number to `gone` of the line."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < pairs
    line, number = tl.load(line + at, there, 0), tl.load(number + at, there, 0)
    word, bit = number // WORD, number % WORD
    before = tl.atomic_or(bits + line * words + word, tl.full((BLOCK,), 1, tl.int64) << bit, there)
    tl.store(dirty + (line // LINES) * words + word, 1, there)
    if gone is not None:
        is_first = ((before >> bit) & 1) == 0
        tl.atomic_add(gone + line, tl.load(times + number, there, 0), there & is_first)


@triton.jit
def without_pairs(logits, bits, dirty, lines, numbers, is_line, first, words, WORDS: tl.constexpr):
    """Return a tile of logits, lines x numbers, with -inf for the marked pairs; `first` is the tile's first word."""
    # Unrolled for two words: a loop would keep the compiler from prefetching.
    is_dirty = tl.load(dirty + first) != 0
    if WORDS == 2:
        is_dirty = is_dirty | (tl.load(dirty + first + 1, first + 1 < words, 0) != 0)
    if is_dirty:
        word = tl.load(bits + lines * words + first, is_line, 0)[:, None]
        if WORDS == 2:
            second = tl.load(bits + lines * words + first + 1, is_line & (first + 1 < words), 0)
            word = tl.where(numbers < WORD, word, second[:, None])
        logits = tl.where(((word >> (numbers % WORD)) & 1) == 0, logits, -float("inf"))
    return logits


@triton.jit
def pull_rows(
    query,
    items,
    bias,
    bits,
    dirty,
    peaks,
    totals,
    means,
    rows,
    columns,
    words,
    span,
    scale,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    TM: tl.constexpr,
    TN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute the softmax parts of TM rows over `span` columns.

    The parts are the largest logit, the sum of 2^(logit - largest), and the sum of the columns with these weights.
    """
    top, row, column = tl.program_id(0) * TM, tl.arange(0, TM), tl.arange(0, TN)
    is_row = top + row < rows
    users = query.load([top, 0])
    peak, total = tl.full((TM,), -float("inf"), tl.float32), tl.zeros((TM,), tl.float32)
    mean = tl.zeros((TM, D), tl.float32)
    bits += top.to(tl.int64) * words
    dirty += tl.program_id(0) * words
    first = tl.program_id(1) * span
    for start in range(first, tl.minimum(first + span, columns), TN):
        block = items.load([start, 0])
        added = tl.load(bias + start + column, start + column < columns, -float("inf"))
        logits = tl.dot(users, block.T, input_precision=PRECISION) * scale + added
        logits = without_pairs(logits, bits, dirty, row, column, is_row, start // WORD, words, TN // WORD)
        higher = tl.maximum(peak, tl.max(logits, 1))
        # Before the first counted column, the difference of two infinities would be NaN.
        level = tl.where(higher == -float("inf"), 0.0, higher)
        powers = tl.exp2(logits - level[:, None])
        fade = tl.exp2(peak - level)
        total = total * fade + tl.sum(powers, 1)
        mean = tl.dot(powers.to(block.dtype), block, mean * fade[:, None], input_precision=PRECISION)
        peak = higher
    place, at = tl.program_id(1) * rows + top + row, tl.arange(0, D)
    tl.store(peaks + place, peak, is_row)
    tl.store(totals + place, total, is_row)
    tl.store(means + place.to(tl.int64)[:, None] * WIDTH + at, mean, is_row[:, None] & (at < WIDTH))


@triton.jit
def join_parts(
    peaks, totals, means, levels, joined, rows, parts, WIDTH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):
    """Join the parts of `pull_rows` into the binary logarithm of each row's sum and the weighted mean of columns."""
    row, at = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    is_row = row < rows
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    for part in range(parts):
        peak = tl.maximum(peak, tl.load(peaks + part * rows + row, is_row, -float("inf")))
    peak = tl.where(peak == -float("inf"), 0.0, peak)
    total, mean = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, D), tl.float32)
    for part in range(parts):
        place = part * rows + row
        fade = tl.exp2(tl.load(peaks + place, is_row, -float("inf")) - peak)
        total += fade * tl.load(totals + place, is_row, 0.0)
        lines = means + place.to(tl.int64)[:, None] * WIDTH + at
        mean += fade[:, None] * tl.load(lines, is_row[:, None] & (at < WIDTH), 0.0)
    total = tl.maximum(total, TINY)
    tl.store(levels + row, peak + tl.log2(total), is_row)
    tl.store(joined + row.to(tl.int64)[:, None] * WIDTH + at, mean / total[:, None], is_row[:, None] & (at < WIDTH))


@triton.jit
def pull_columns(
    query,
    items,
    bias,
    bits,
    dirty,
    levels,
    shares,
    sums,
    rows,
    columns,
    words,
    span,
    scale,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    TM: tl.constexpr,
    TN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum softmax * share * query for TN columns over `span` rows; `levels` are the logarithms of the rows' sums."""
    top, row, column = tl.program_id(0) * TN, tl.arange(0, TM), tl.arange(0, TN)
    is_column = top + column < columns
    block = items.load([top, 0])
    added = tl.load(bias + top + column, is_column, -float("inf"))
    total = tl.zeros((TN, D), tl.float32)
    bits += top.to(tl.int64) * words
    dirty += tl.program_id(0) * words
    first = tl.program_id(1) * span
    for start in range(first, tl.minimum(first + span, rows), TM):
        users = query.load([start, 0])
        is_row = start + row < rows
        level = tl.load(levels + start + row, is_row, 0.0)
        share = tl.load(shares + start + row, is_row, 0.0)
        logits = tl.dot(block, users.T, input_precision=PRECISION) * scale + added[:, None]
        logits = without_pairs(logits, bits, dirty, column, row, is_column, start // WORD, words, TM // WORD)
        weights = tl.exp2(logits - level) * share
        total = tl.dot(weights.to(users.dtype), users, total, input_precision=PRECISION)
    place, at = tl.program_id(1) * columns + top + column, tl.arange(0, D)
    tl.store(sums + place.to(tl.int64)[:, None] * WIDTH + at, total, is_column[:, None] & (at < WIDTH))
