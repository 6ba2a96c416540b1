"""Count the positives of a window by item and by user: Beam combiners with sketches as accumulators."""

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.combiners import TupleCombineFn

from weir import sketches
from weir.contracts.base import columns
from weir.pipelines.config import SketchConfig
from weir.sketches import CountMinSketch, ExactCounter, FrequencyEstimator

__all__ = ["CountItemsAndUsers", "CountKeys", "SketchCoder", "empty_sketch"]


def empty_sketch(config: SketchConfig) -> FrequencyEstimator:
    """Return an empty estimator of the configured kind."""
    if config.kind == "exact":
        return ExactCounter()
    return CountMinSketch(config.width, config.depth, conservative=config.conservative)


class SketchCoder(beam.coders.Coder):
    """Beam coder of sketches, compressed with zstd: most cells are zero until a window is large."""

    def encode(self, value: FrequencyEstimator) -> bytes:
        """Return the uncompressed size (8 bytes) and the compressed bytes."""
        data = value.to_bytes()
        compressed: bytes = pa.compress(data, codec="zstd", asbytes=True)
        return len(data).to_bytes(8, "little") + compressed

    def decode(self, encoded: bytes) -> FrequencyEstimator:
        """Return the sketch."""
        return sketches.load(self.decompressed(encoded))

    @staticmethod
    def decompressed(encoded: bytes) -> bytes:
        """Return the bytes of `FrequencyEstimator.to_bytes`."""
        size = int.from_bytes(encoded[:8], "little")
        data: bytes = pa.decompress(encoded[8:], size, codec="zstd", asbytes=True)
        return data

    def estimate_size(self, value: FrequencyEstimator) -> int:
        """Return the uncompressed size (bytes), which costs no encoding: Beam asks after each step."""
        return value.nbytes

    def is_deterministic(self) -> bool:
        """Return True: equal sketches have equal bytes."""
        return True


class CountKeys(beam.CombineFn):
    """Combines tables of keys (in `column`) and counts into one sketch, encoded by `SketchCoder`.

    The sum of several conservative sketches is an upper bound, a little looser than one sketch of all keys.
    """

    def __init__(self, config: SketchConfig, column: str) -> None:
        self._config = config
        self._column = column

    def create_accumulator(self) -> FrequencyEstimator:
        """Return an empty sketch."""
        return empty_sketch(self._config)

    def add_input(self, accumulator: FrequencyEstimator, element: pa.Table) -> FrequencyEstimator:
        """Count a table of keys."""
        accumulator.update(element[self._column].to_numpy(), element[columns.COUNT].to_numpy().astype(float))
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[FrequencyEstimator]) -> FrequencyEstimator:
        """Merge the sketches of parts."""
        first, *others = accumulators
        for other in others:
            first.merge(other)
        return first

    def extract_output(self, accumulator: FrequencyEstimator) -> bytes:
        """Return the encoded sketch."""
        return SketchCoder().encode(accumulator)

    def get_accumulator_coder(self) -> Any:
        """Return the coder of accumulators between workers."""
        return SketchCoder()


class CountItemsAndUsers(TupleCombineFn):
    """Combines pairs of tables (items, users), each with counts, into the pair of their encoded sketches."""

    def __init__(self, config: SketchConfig) -> None:
        combiners = CountKeys(config, columns.ITEM_KEY), CountKeys(config, columns.USER_KEY)
        super().__init__(*combiners)  # type: ignore[no-untyped-call]

    def get_accumulator_coder(self) -> Any:
        """Return the coder of both sketches; Beam would choose pickle."""
        return beam.coders.TupleCoder([SketchCoder(), SketchCoder()])
