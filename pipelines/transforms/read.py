"""Read: list, read and validate the log, and write, name and read the files of dead letters."""

import logging
import pickle
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeVar

import apache_beam as beam
import msgspec
import numpy as np
from apache_beam.coders.typecoders import registry

from weir.contracts import CorruptArtefactError, LetterFile, Store
from weir.contracts.storage.store import checksum
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.progress import WHOLE_FILE, LettersWritten, PartitionProgress, Progress
from weir.pipelines.runs.run import END_OF_TIME, Run
from weir.readers import (
    Block,
    BlockId,
    Chunk,
    DeadLetter,
    Letters,
    LogConfig,
    Reading,
    Reason,
    UnreadableError,
    Validator,
    chunks_of,
    read_chunk,
)

__all__ = [
    "DEAD",
    "PROGRESS",
    "ElementCoder",
    "ListChunks",
    "ReadChunk",
    "Validate",
    "WriteDeadLetters",
    "file_name",
    "is_retried",
    "large",
    "origin_of",
    "read_dead_letters",
    "retried",
    "start_of",
]


class _Large(Protocol):
    """A pipeline element that knows its size in bytes."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=_Large)

logger = logging.getLogger(__name__)

DEAD: Final = "dead"
"""The tag of dead letters (`Letters`)."""

PROGRESS: Final = "progress"
"""The tag of what a run has read (`Progress`)."""

_FOLDER: Final = "dead-letters"
_REASONS: Final = frozenset(map(str, Reason))


class ElementCoder(beam.coders.Coder):
    """Pickles elements, as Beam would, but estimates their size without pickling.

    For small collections Beam asks for the size of nearly every element after each step; its own coder would pickle an
    element three times as often as it travels.
    """

    def encode(self, value: _Large) -> bytes:
        """Return the pickle."""
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> _Large:
        """Return the element."""
        element: _Large = pickle.loads(encoded)  # noqa: S301 - made by another worker of this pipeline
        return element

    def estimate_size(self, value: _Large) -> int:
        """Return the approximate size of the pickle, bytes."""
        return value.nbytes


def large(cls: type[T]) -> type[T]:
    """Register `ElementCoder` for a class (decorator); Beam uses it for collections of this declared type."""
    registry.register_coder(cls, ElementCoder)
    return cls


large(Block)


class Validate(beam.DoFn):
    """Turns a `Block` into a `ValidatedBlock`; the `Letters` of every block are tagged `DEAD`."""

    def __init__(self, config: LogConfig) -> None:
        self._config = config

    def setup(self) -> None:
        """Build the decoder, which cannot be pickled."""
        self._validator = Validator(self._config)

    def process(self, element: Block) -> Iterator[Any]:
        """Validate one block."""
        valid, letters = self._validator.validate(element)
        yield beam.pvalue.TaggedOutput(DEAD, letters)
        yield valid


class ListChunks(beam.DoFn):
    """Turns a `Reading` into the `Chunk`s of its partition; dead letters are tagged `DEAD`, `Progress` `PROGRESS`.

    A file with unreadable content becomes a dead letter; a failure of the file system is logged. In both cases the file
    does not count as read, so the next run tries again.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    def process(self, element: Reading) -> Iterator[Any]:
        """List the chunks of one partition."""
        partition = element.partition
        whole = BlockId(partition.key, -1)
        try:
            chunks, stop = chunks_of(element, self._config.chunk_bytes)
        except UnreadableError as error:
            logger.error("%s", error.fault.detail)
            letter = DeadLetter.of(partition.key, 0, error.fault, b"")
            yield beam.pvalue.TaggedOutput(DEAD, Letters(whole, (letter,)))
            return
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            logger.error("%s cannot be read now, the next run tries again: %s", partition.url, error)
            return
        yield beam.pvalue.TaggedOutput(DEAD, Letters(whole, ()))
        progress = Progress(partitions={partition.key: PartitionProgress(stop)})
        if partition.until is not None:
            # The file has more rows: the input is incomplete, and a commit must not record more as read.
            progress.wanted[partition.key] = partition.until + 1
        yield beam.pvalue.TaggedOutput(PROGRESS, progress)
        yield from chunks


class ReadChunk(beam.DoFn):
    """Turns a `Chunk` into `Block`s; unreadable content does not raise, but becomes a fault of its block."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    def process(self, element: Chunk) -> Iterator[Block]:
        """Read one chunk."""
        for block in read_chunk(element, self._config, self._config.chunk_rows, self._config.chunk_bytes):
            for _, fault, _ in block.faults:
                logger.error("%s", fault.detail)
            yield block


class WriteDeadLetters(beam.DoFn):
    """Turns the `Letters` of a block into `LettersWritten`: writes a file of the letters that no commit records yet."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run

    def process(self, element: Letters) -> Iterator[LettersWritten]:
        """Write the letters of one block."""
        block = element.block
        if not element.letters:
            return
        refused = self._run.refused.get(block.partition, np.empty(0, np.int64))
        is_whole = block.start == WHOLE_FILE
        positions = np.fromiter((WHOLE_FILE if is_whole else letter.position for letter in element.letters), np.int64)
        is_recorded = np.isin(positions, refused).tolist()
        new = [letter for letter, recorded in zip(element.letters, is_recorded, strict=True) if not recorded]
        if not is_whole:
            new = [*self._uncounted(block.partition, new)]
        if not new:
            return
        data = msgspec.json.Encoder().encode_lines(new)
        name = file_name(block, self._run.id)
        entry = self._store.write(name, data, rows=len(new))
        reasons = dict(Counter(letter.reason for letter in new))
        file = LetterFile(**entry.model_dump() | {"name": name, "partition": block.partition, "reasons": reasons})
        yield LettersWritten(file, END_OF_TIME if is_whole else max(letter.position for letter in new))

    def _uncounted(self, key: str, letters: list[DeadLetter]) -> Iterator[DeadLetter]:
        """Yield the letters of partition `key` whose rows are in no window.

        A row below the partition's `stop` was valid when it was first read, and is refused because settings or the time
        of its file have changed: it is pending or has counted. Without an event time it is unknown which, and the
        letter gets `may_have_counted`.
        """
        base = self._run.base
        stop = base.sources[key].stop if key in base.sources else 0
        for letter in letters:
            if letter.position >= stop:
                yield letter
            elif letter.event_ms is None:
                yield msgspec.structs.replace(letter, may_have_counted=True)
            else:
                time, position = np.array([letter.event_ms]), np.array([letter.position])
                windows = time // self._run.window_ms * self._run.window_ms
                if not (base.is_counted(key, windows, position) | base.is_inherited(key, time, position)).any():
                    yield letter


def file_name(block: BlockId, run: str) -> str:
    """Return a new, unique file name for the dead letters that a run writes for a block.

    Letters that a retry refuses again go to the folder of the original letters.
    """
    start = "file" if block.start == WHOLE_FILE else f"{block.start:015d}"
    origin = origin_of(block.partition) if is_retried(block.partition) else block.partition
    return f"{_FOLDER}/{origin}/{start}-{secrets.token_hex(4)}-{run}.jsonl"


def retried(name: str, reason: str, line: int = 0) -> str:
    """Return the partition key for retrying the letters of one `reason` in the file of dead letters `name`.

    With `line`, the key for the rows of the letter at that line, if it stands for several rows.
    """
    return f"{name}#{reason}:{line}" if line else f"{name}#{reason}"


def is_retried(key: str) -> bool:
    """Return whether a partition holds dead letters; keys of log files end with a suffix instead."""
    return key.startswith(f"{_FOLDER}/") and key.rpartition("#")[2].partition(":")[0] in _REASONS


def origin_of(name: str) -> str:
    """Return the key of the log partition that a file of dead letters, or a key made by `retried`, came from."""
    return name.removeprefix(f"{_FOLDER}/").rpartition("/")[0]


def start_of(name: str) -> int:
    """Return the start position of a file of dead letters from its name; 0 if the name has none."""
    digits = name.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def read_dead_letters(store: Store, name: str, expected: str | None = None) -> list[DeadLetter]:
    """Return the letters in a file of dead letters; an absent file holds none.

    Raises `CorruptArtefactError` if the file cannot be decoded or has another checksum than `expected`.
    """
    try:
        data = store.read(name)
    except FileNotFoundError:
        return []
    if expected is not None and (actual := checksum(data)) != expected:
        raise CorruptArtefactError(store.path(name), f"has checksum {actual}, its commit says {expected}")
    try:
        return msgspec.json.Decoder(DeadLetter).decode_lines(data)
    except msgspec.DecodeError as error:
        raise CorruptArtefactError(store.path(name), f"does not hold dead letters: {error}") from error
