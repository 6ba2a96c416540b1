"""Dead letters: one file per block and attempt, which counts once a commit names it."""

import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Final

import apache_beam as beam
import msgspec
import numpy as np

from weir.contracts import CorruptArtefactError, LetterFile, Store
from weir.contracts.storage import checksum
from weir.pipelines.positions import END_OF_TIME, WHOLE_FILE, Run
from weir.pipelines.progress import LettersWritten
from weir.readers import BlockId, DeadLetter, Letters, Reason

__all__ = ["WriteDeadLetters", "file_name", "is_retried", "origin_of", "read_dead_letters", "retried", "start_of"]

_FOLDER: Final = "dead-letters"
_REASONS: Final = frozenset(map(str, Reason))


class WriteDeadLetters(beam.DoFn):
    """`Letters` to `LettersWritten`; those that an earlier commit records already are left out."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run

    def process(self, element: Letters) -> Iterator[LettersWritten]:
        """Write the letters of one block."""
        block = element.block
        if not element.letters:
            return
        known = self._run.refused.get(block.partition, np.empty(0, np.int64))
        is_whole = block.start == WHOLE_FILE
        positions = np.fromiter((WHOLE_FILE if is_whole else one.position for one in element.letters), np.int64)
        is_known = np.isin(positions, known)
        new = [letter for letter, seen in zip(element.letters, is_known.tolist(), strict=True) if not seen]
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
        """Yield the letters of rows that are in no window.

        A row below `stop` was valid before: it is refused because settings or the time of its file have changed, and
        waits or has counted. Where its window is unknown, so is that.
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
    """Return a name for a file of dead letters of a block in the store; no two calls return the same.

    Letters of letters that were read again lie in the folder of the first ones.
    """
    start = "file" if block.start == WHOLE_FILE else f"{block.start:015d}"
    origin = origin_of(block.partition) if is_retried(block.partition) else block.partition
    return f"{_FOLDER}/{origin}/{start}-{secrets.token_hex(4)}-{run}.jsonl"


def retried(name: str, reason: str, line: int = 0) -> str:
    """Return the key of a partition: the letters of one reason in a file of dead letters, by its first name.

    Or the rows of one of them, by its line, which stands for several.
    """
    return f"{name}#{reason}:{line}" if line else f"{name}#{reason}"


def is_retried(key: str) -> bool:
    """Return whether a partition holds dead letters; the key of a file of a log ends with its suffix."""
    return key.startswith(f"{_FOLDER}/") and key.rpartition("#")[2].partition(":")[0] in _REASONS


def origin_of(name: str) -> str:
    """Return the partition of the log that a file of dead letters, or the key of one read again, comes from."""
    return name.removeprefix(f"{_FOLDER}/").rpartition("/")[0]


def start_of(name: str) -> int:
    """Return the position at which the block of a file of dead letters starts; 0 where its name does not tell."""
    digits = name.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def read_dead_letters(store: Store, name: str, expected: str | None = None) -> list[DeadLetter]:
    """Return the letters in one file, of a checksum if one is expected; an absent file holds none.

    Raises `CorruptArtefactError`.
    """
    try:
        data = store.read(name)
    except FileNotFoundError:
        return []
    if expected is not None and (found := checksum(data)) != expected:
        raise CorruptArtefactError(store.path(name), f"has checksum {found}, its commit says {expected}")
    try:
        return msgspec.json.Decoder(DeadLetter).decode_lines(data)
    except msgspec.DecodeError as error:
        raise CorruptArtefactError(store.path(name), f"does not hold dead letters: {error}") from error
