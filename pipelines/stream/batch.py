"""What a reader of one partition hands on: consecutive messages, validated, and what it accounts for."""

from dataclasses import dataclass

import pyarrow as pa

from weir.pipelines.element_coder import large
from weir.readers import DeadLetter, Int64

__all__ = ["Batch"]


@large
@dataclass(frozen=True)
class Batch:
    """Positions [start, stop) of a partition: valid rows (`INTERACTION_SCHEMA`), dead letters, and nothing else.

    `job` is the one that reads it; restarted by its engine it is the same. `start` is the `stop` of the batch before,
    so that batches tile a partition: positions without a message and messages without a value (at the positions
    `skipped`) belong to the batch that passed over them. `watermark_ms` is the watermark of the partition before the
    batch (event time), and the Beam time of the element. `size` is the position at which the partition ended when the
    batch was read.
    """

    partition: str
    job: str
    start: int
    stop: int
    watermark_ms: int
    size: int
    rows: pa.RecordBatch
    letters: tuple[DeadLetter, ...]
    skipped: Int64

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.rows.nbytes)
