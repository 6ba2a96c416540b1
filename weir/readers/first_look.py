"""The first rows of a log, judged before anything is written: whether any of them is valid, and if not, why."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from weir.readers.blocks import Block, Chunk, Lines, Reading
from weir.readers.config import LogConfig
from weir.readers.faults import HINTS, DeadLetter
from weir.readers.fields import without_blanks
from weir.readers.listing import UnreadableError, chunks_of
from weir.readers.reading import read_chunk
from weir.readers.sources import Format, Partition
from weir.readers.validate import Validator

__all__ = ["ENOUGH_ROWS", "FirstLook", "first_look", "row_count"]

ENOUGH_ROWS: Final = 1000
"""So many rows without a valid one are no accident."""

_BYTES: Final = 1 << 18
_REACH: Final = 1 << 24


@dataclass
class FirstLook:
    """What was seen: `reasons` counts rows, `first` is the first letter."""

    rows: int = 0
    valid: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first: DeadLetter | None = None

    def add(self, rows: int, valid: int, letters: Sequence[DeadLetter]) -> None:
        """Take in a block."""
        self.rows += rows
        self.valid += valid
        counts = Counter(letter.reason for letter in letters)
        # One letter may stand for all rows of a block.
        self.reasons += Counter(dict.fromkeys(counts, rows - valid)) if len(counts) == 1 else counts
        self.first = self.first or next(iter(letters), None)

    @property
    def problem(self) -> str:
        """What is wrong with most rows, with the first of them and the setting that mends it; empty without any."""
        if self.first is None:
            return ""
        [(reason, count)] = self.reasons.most_common(1)
        hint = f"; {HINTS[reason]}" if reason in HINTS else ""
        return f"{reason} in {count:,} of {self.rows:,} rows; the first: {self.first.detail}{hint}"


def first_look(partitions: Sequence[Partition], config: LogConfig, most: int = ENOUGH_ROWS) -> FirstLook:
    """Read at least `most` rows of a log, or all of it, until one is valid."""
    look, validator = FirstLook(), Validator(config)
    for partition in partitions:
        for chunk in _chunks(partition):
            for block in read_chunk(chunk, config, most, _BYTES, checked=False):
                valid, letters = validator.validate(block)
                look.add(row_count(block), len(valid.rows), letters.letters)
                if look.valid or look.rows >= most:
                    return look
    return look


def _chunks(partition: Partition) -> Iterator[Chunk]:
    """Yield the chunks of a file; those of a large CSV step by step, as listing them reads the file."""
    start, reach = 0, _REACH if partition.format is Format.DELIMITED else partition.size
    while True:
        head = replace(partition, size=min(partition.size, reach))
        is_all = head.size == partition.size
        try:
            chunks, stop = chunks_of(Reading(head, start, only_whole_lines=not is_all), _BYTES)
        except UnreadableError:
            # No row of it is refused for good: it is tried again when it has changed.
            return
        yield from chunks
        if is_all:
            return
        start, reach = stop, 8 * reach


def row_count(block: Block) -> int:
    """Return the rows of a block that are no blank lines."""
    content = block.content
    if content is None:
        return len(block.faults)
    rows = without_blanks(content.lines, content.positions)[1] if isinstance(content, Lines) else content.positions
    return len(rows) + len(block.faults)
