"""Dead letters: one file per block, rewritten whenever the block is read again."""

from collections.abc import Iterator

import apache_beam as beam
import msgspec

from contracts import Store
from pipelines.blocks import Letters
from pipelines.faults import DeadLetter

__all__ = ["WriteDeadLetters", "read_dead_letters"]


class WriteDeadLetters(beam.DoFn):
    """Writes `Letters`; removes the file of a block that has none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def process(self, element: Letters) -> Iterator[None]:
        """Write the letters of one block."""
        name = element.block.dead_letters
        if element.letters:
            self._store.write(name, msgspec.json.Encoder().encode_lines(element.letters))
        else:
            self._store.remove(name)
        yield from ()


def read_dead_letters(store: Store, name: str) -> list[DeadLetter]:
    """Return the letters in one file; an absent file holds none."""
    try:
        return msgspec.json.Decoder(DeadLetter).decode_lines(store.read(name))
    except FileNotFoundError:
        return []
