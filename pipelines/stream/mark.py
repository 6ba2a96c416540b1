"""The mark of a reader at a checkpoint of the engine: a shortcut, the commits know where to go on without it."""

import struct
from dataclasses import dataclass
from typing import Final

from apache_beam.coders import Coder
from apache_beam.io.unbounded_source import CheckpointMark

__all__ = ["Mark", "MarkCoder"]

_FORM: Final = struct.Struct(">qq")


@dataclass(frozen=True)
class Mark(CheckpointMark):
    """The position of the next batch of a partition, and the watermark before it (ms, event time)."""

    start: int
    watermark_ms: int


class MarkCoder(Coder):
    """Two big-endian integers of 64 bits."""

    def encode(self, value: Mark) -> bytes:
        """Return 16 bytes."""
        return _FORM.pack(value.start, value.watermark_ms)

    def decode(self, encoded: bytes) -> Mark:
        """Return the mark."""
        return Mark(*_FORM.unpack(encoded))

    def is_deterministic(self) -> bool:
        """Beam compares encoded marks, to find the reader that it has kept."""
        return True
