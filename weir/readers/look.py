"""Read and validate the first or the last rows of a log, before anything is written."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from weir.contracts import EventClock
from weir.contracts.base import columns
from weir.readers.advice import next_step
from weir.readers.blocks import Block, BlockId, Chunk, DeadLetter, Letters, Lines, Reading, ValidatedBlock
from weir.readers.config import LogConfig
from weir.readers.decode import without_blanks
from weir.readers.reading import UnreadableError, chunks_of, read_chunk
from weir.readers.sources import Format, Partition, latest_event_ms
from weir.readers.validate import Validator

__all__ = ["ENOUGH_ROWS", "FirstLook", "Newest", "first_look", "read_newest", "row_count"]

ENOUGH_ROWS: Final = 1000
"""If this number of rows has no valid row, the settings are wrong."""
_BYTES: Final = 1 << 18
_REACH: Final = 1 << 24
_BLOCK_ROWS: Final = 1 << 16
_BLOCK_BYTES: Final = 8 << 20


@dataclass
class FirstLook:
    """The result of validating rows: their number, how many are valid, and why the others are refused.

    `reasons` counts refused rows by reason, `firsts` has the first letter of each reason, `files` the files by key.
    `start_ms` is the oldest event time of the first block with a valid row.
    """

    rows: int = 0
    valid: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    firsts: dict[str, DeadLetter] = field(default_factory=dict)
    files: dict[str, Partition] = field(default_factory=dict)
    start_ms: int | None = None

    def add(self, rows: int, valid: int, letters: Sequence[DeadLetter]) -> None:
        """Add the number of rows, the number of valid rows and the dead letters of a block."""
        self.rows += rows
        self.valid += valid
        counts = Counter(letter.reason for letter in letters)
        # One letter may stand for all rows of a block.
        self.reasons += Counter(dict.fromkeys(counts, rows - valid)) if len(counts) == 1 else counts
        for letter in letters:
            self.firsts.setdefault(letter.reason, letter)

    @property
    def commonest(self) -> DeadLetter | None:
        """The first letter of the most frequent reason."""
        return self.firsts[max(self.reasons, key=self.reasons.__getitem__)] if self.reasons else None

    @property
    def advice(self) -> str:
        """Advice about the most frequent reason; "" without refused rows."""
        letter = self.commonest
        return "" if letter is None else next_step(letter.reason, self.files.get(letter.partition))

    @property
    def problem(self) -> str:
        """The most frequent reason, with the first row and advice; "" without refused rows."""
        letter = self.commonest
        if letter is None:
            return ""
        count = self.reasons[letter.reason]
        return f"{letter.reason} in {count:,} of {self.rows:,} rows; the first: {letter.detail}; {self.advice}"


def first_look(
    partitions: Sequence[Partition], config: LogConfig, most: int = ENOUGH_ROWS, clock: EventClock | None = None
) -> FirstLook:
    """Read a log until one row is valid, at least `most` rows are read, or the log ends.

    A file that cannot be opened counts as a refused row. Rows are judged as in a run: with the `clock` of a store, also
    by the arrival of their file.
    """
    look, validator = FirstLook(files={one.key: one for one in partitions}), Validator(config)
    for partition in partitions:
        latest = None if clock is None else latest_event_ms(partition, clock, config)
        try:
            for chunk in _chunks(partition, latest):
                for block in read_chunk(chunk, config, most, _BYTES, checked=False):
                    valid, letters = validator.validate(block)
                    look.add(row_count(block), len(valid.rows), letters.letters)
                    if len(valid.rows):
                        look.start_ms = int(valid.rows[columns.TIMESTAMP].to_numpy().min())
                    if look.valid or look.rows >= most:
                        return look
        except UnreadableError as error:
            look.add(1, 0, [DeadLetter.of(partition.key, 0, error.fault, b"")])
    return look


def _chunks(partition: Partition, latest_ms: int | None) -> Iterator[Chunk]:
    """Yield the chunks of a file; raises `UnreadableError`.

    The chunks of a large CSV are listed in steps, because listing them reads the file.
    """
    start, reach = 0, _REACH if partition.format is Format.DELIMITED else partition.size
    while True:
        head = replace(partition, size=min(partition.size, reach))
        is_all = head.size == partition.size
        chunks, stop = chunks_of(Reading(head, start, only_whole_lines=not is_all, latest_ms=latest_ms), _BYTES)
        yield from chunks
        if is_all:
            return
        start, reach = stop, 8 * reach


def row_count(block: Block) -> int:
    """Return the number of rows of a block, without blank lines."""
    content = block.content
    if content is None:
        return len(block.faults)
    rows = without_blanks(content.lines, content.positions)[1] if isinstance(content, Lines) else content.positions
    return len(rows) + len(block.faults)


@dataclass(frozen=True)
class Newest:
    """The last rows of a log: validated `blocks` in order, the number of raw `rows`, and whether that is all.

    Each dead letter is replaced by the first one of its block with the same reason: all letters could take more memory
    than the valid rows.
    """

    blocks: list[tuple[ValidatedBlock, Letters]]
    rows: int
    is_whole: bool


def read_newest(
    partitions: Sequence[Partition],
    config: LogConfig,
    rows: int,
    *,
    block_rows: int = _BLOCK_ROWS,
    block_bytes: int = _BLOCK_BYTES,
) -> Newest:
    """Return the last `rows` rows of finished files, up to a block more; of a gzip file its first rows instead.

    In a log in order of arrival these are the newest events; in one sorted by user, all events of the last users. Rows
    may lack a time, as in `read_log`. Errors of the file system are raised.
    """
    validator, read, is_whole = Validator(config, needs_time=False), 0, True
    pieces: list[list[tuple[ValidatedBlock, Letters]]] = []
    for found in _backwards(partitions, block_bytes):
        if read >= rows:
            is_whole = False
            break
        piece = _last_rows(found, rows - read) if isinstance(found, Chunk) else found
        is_whole &= piece is found
        pieces.append([])
        for block in (
            read_chunk(piece, config, block_rows, block_bytes, checked=False) if isinstance(piece, Chunk) else (piece,)
        ):
            # In a gzip file, whose number of rows is unknown beforehand.
            if read >= rows:
                is_whole = False
                break
            read += row_count(block)
            valid, dead = validator.validate(block)
            pieces[-1].append((valid, _by_reason(dead)))
    return Newest([block for piece in reversed(pieces) for block in piece], read, is_whole)


def _backwards(partitions: Sequence[Partition], size: int) -> Iterator[Chunk | Block]:
    """Yield the chunks of files, last chunk first; for an unreadable file, a block with the fault."""
    for partition in reversed(partitions):
        try:
            yield from reversed(chunks_of(Reading(partition), size)[0])
        except UnreadableError as error:
            yield Block(BlockId(partition.key, -1), None, ((0, error.fault, b""),))


def _by_reason(dead: Letters) -> Letters:
    """Replace each letter by the first letter with the same reason, to save memory."""
    firsts = dict[str, DeadLetter]()
    return Letters(dead.block, tuple(firsts.setdefault(letter.reason, letter) for letter in dead.letters))


def _last_rows(chunk: Chunk, rows: int) -> Chunk:
    """Return the last rows of a chunk if its format shows where they start, else the whole chunk."""
    is_longer = chunk.partition.format is Format.PARQUET and chunk.stop - max(chunk.start, chunk.skip) > rows
    return replace(chunk, skip=chunk.stop - rows) if is_longer else chunk
