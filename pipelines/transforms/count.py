"""Count: the positives of a window by item and by user, Beam combiners whose accumulators are the sketches."""

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
    """Return the estimator that the settings name, before the first event."""
    if config.kind == "exact":
        return ExactCounter()
    return CountMinSketch(config.width, config.depth, conservative=config.conservative)


class SketchCoder(beam.coders.Coder):
    """Compressed bytes of a sketch: most of its cells are zero until its window is large."""

    def encode(self, value: FrequencyEstimator) -> bytes:
        """Return the compressed bytes, headed by their size."""
        data = value.to_bytes()
        compressed: bytes = pa.compress(data, codec="zstd", asbytes=True)
        return len(data).to_bytes(8, "little") + compressed

    def decode(self, encoded: bytes) -> FrequencyEstimator:
        """Return the sketch."""
        return sketches.load(self.decompressed(encoded))

    @staticmethod
    def decompressed(encoded: bytes) -> bytes:
        """Return what `FrequencyEstimator.to_bytes` gave."""
        size = int.from_bytes(encoded[:8], "little")
        found: bytes = pa.decompress(encoded[8:], size, codec="zstd", asbytes=True)
        return found

    def estimate_size(self, value: FrequencyEstimator) -> int:
        """Return the bytes of the cells, compressed or not: Beam asks after each step."""
        return value.nbytes

    def is_deterministic(self) -> bool:
        """Say that equal sketches have equal bytes."""
        return True


class CountKeys(beam.CombineFn):
    """Tables of keys (in `column`) and counts to the encoded sketch of them all (`SketchCoder`).

    Conservative sketches of parts sum to an upper bound that is a little looser than one sketch of the whole.
    """

    def __init__(self, config: SketchConfig, column: str) -> None:
        self._config = config
        self._column = column

    def create_accumulator(self) -> FrequencyEstimator:
        """Begin with an empty sketch."""
        return empty_sketch(self._config)

    def add_input(self, accumulator: FrequencyEstimator, element: pa.Table) -> FrequencyEstimator:
        """Count a table of keys."""
        accumulator.update(element[self._column].to_numpy(), element[columns.COUNT].to_numpy().astype(float))
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[FrequencyEstimator]) -> FrequencyEstimator:
        """Add the sketches of parts."""
        first, *others = accumulators
        for other in others:
            first.merge(other)
        return first

    def extract_output(self, accumulator: FrequencyEstimator) -> bytes:
        """Return the encoded sketch."""
        return SketchCoder().encode(accumulator)

    def get_accumulator_coder(self) -> Any:
        """Return the coder of sketches on their way between workers."""
        return SketchCoder()


class CountItemsAndUsers(TupleCombineFn):
    """Pairs of tables, of items and of users, to the pair of their encoded sketches."""

    def __init__(self, config: SketchConfig) -> None:
        combiners = CountKeys(config, columns.ITEM_KEY), CountKeys(config, columns.USER_KEY)
        super().__init__(*combiners)  # type: ignore[no-untyped-call]

    def get_accumulator_coder(self) -> Any:
        """Return the coder of both sketches; Beam's own choice would be pickle."""
        return beam.coders.TupleCoder([SketchCoder(), SketchCoder()])
