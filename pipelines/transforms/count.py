"""Count: the positive items of a window into one sketch, a Beam combiner whose accumulator is the sketch."""

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import pyarrow as pa

from contracts import columns
from pipelines.config import SketchConfig
from sketches import CountMinSketch

__all__ = ["CountItems", "SketchCoder"]


class SketchCoder(beam.coders.Coder):
    """Compressed bytes of a sketch: most of its cells are zero until its window is large."""

    def encode(self, value: CountMinSketch) -> bytes:
        """Return the compressed bytes, headed by their size."""
        data = value.to_bytes()
        compressed: bytes = pa.compress(data, codec="zstd", asbytes=True)
        return len(data).to_bytes(8, "little") + compressed

    def decode(self, encoded: bytes) -> CountMinSketch:
        """Return the sketch."""
        size = int.from_bytes(encoded[:8], "little")
        return CountMinSketch.from_bytes(pa.decompress(encoded[8:], size, codec="zstd", asbytes=True))

    def is_deterministic(self) -> bool:
        """Say that equal sketches have equal bytes."""
        return True


class CountItems(beam.CombineFn):
    """Tables of items and counts to the encoded sketch of them all (`SketchCoder`).

    Conservative sketches of parts sum to an upper bound that is a little looser than one sketch of the whole.
    """

    def __init__(self, config: SketchConfig) -> None:
        self._config = config

    def create_accumulator(self) -> CountMinSketch:
        """Begin with an empty sketch."""
        return CountMinSketch(self._config.width, self._config.depth, conservative=self._config.conservative)

    def add_input(self, accumulator: CountMinSketch, element: pa.Table) -> CountMinSketch:
        """Count a table of items."""
        accumulator.update(element[columns.ITEM_KEY].to_numpy(), element[columns.COUNT].to_numpy().astype(float))
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[CountMinSketch]) -> CountMinSketch:
        """Add the sketches of parts."""
        first, *others = accumulators
        for other in others:
            first.merge(other)
        return first

    def extract_output(self, accumulator: CountMinSketch) -> bytes:
        """Return the encoded sketch."""
        return SketchCoder().encode(accumulator)

    def get_accumulator_coder(self) -> Any:
        """Return the coder of sketches on their way between workers."""
        return SketchCoder()
