"""Dead letters: one file per block and attempt, which counts once a commit names it."""

import secrets
from collections import Counter
from collections.abc import Iterator

import apache_beam as beam
import msgspec
import numpy as np

from weir.contracts import CorruptArtefactError, LetterFile, Store
from weir.contracts.storage import checksum
from weir.pipelines.positions import END_OF_TIME, WHOLE_FILE, Run
from weir.pipelines.progress import LettersWritten
from weir.readers import BlockId, DeadLetter, Letters

__all__ = ["WriteDeadLetters", "file_name", "read_dead_letters"]


class WriteDeadLetters(beam.DoFn):
    """`Letters` to `LettersWritten`; those that an earlier commit records already are left out."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run

    def process(self, element: Letters) -> Iterator[LettersWritten]:
        """Write the letters of one block."""
        block = element.block
        known = self._run.refused.get(block.partition, np.empty(0, np.int64))
        is_whole = block.start == WHOLE_FILE
        new = [one for one in element.letters if (WHOLE_FILE if is_whole else one.position) not in known]
        if not new:
            return
        data = msgspec.json.Encoder().encode_lines(new)
        name = file_name(block, self._run.id)
        entry = self._store.write(name, data, rows=len(new))
        reasons = dict(Counter(letter.reason for letter in new))
        file = LetterFile(**entry.model_dump() | {"name": name, "partition": block.partition, "reasons": reasons})
        yield LettersWritten(file, END_OF_TIME if is_whole else max(letter.position for letter in new))


def file_name(block: BlockId, run: str) -> str:
    """Return a name for a file of dead letters of a block in the store; no two calls return the same."""
    start = "file" if block.start == WHOLE_FILE else f"{block.start:015d}"
    return f"dead-letters/{block.partition}/{start}-{secrets.token_hex(4)}-{run}.jsonl"


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
