"""Write: the examples of a window's user shard as one file, which counts for nothing before its commit."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import apache_beam as beam
import pyarrow as pa

from weir.contracts import ExposureCounts, FileEntry, Store, WindowCounts, WindowName, examples_schema
from weir.contracts.artefacts import write_table
from weir.contracts.user_features import UserFeatures
from weir.pipelines.config import PipelineConfig
from weir.pipelines.positions import Run
from weir.pipelines.transforms.deduplicate import ShardWindow

__all__ = ["ShardReport", "WriteShards"]


@dataclass(frozen=True)
class ShardReport:
    """What the commit has to know of a shard; `file` is None where nothing was to be stored."""

    name: WindowName
    file: FileEntry | None
    items: pa.Table
    counts: WindowCounts
    min_event_ms: int
    max_event_ms: int
    features: pa.Table | None = None
    exposure: ExposureCounts = field(default_factory=ExposureCounts)
    user_features: UserFeatures = field(default_factory=UserFeatures)


class WriteShards(beam.DoFn):
    """`ShardWindow` with histories to `ShardReport`; what a retried bundle had written before counts for nothing."""

    def __init__(self, store: Store, run: Run, config: PipelineConfig) -> None:
        self._store = store
        self._run = run
        self._names = config.user_features
        self._schema = examples_schema(config.history_length, config.exposed_items, config.user_features)

    def process(self, element: ShardWindow) -> Iterator[ShardReport]:
        """Write the examples of one shard."""
        file, said = None, UserFeatures()
        if len(element.rows):
            table = element.rows.select(self._schema.names).cast(self._schema)
            name = WindowName.examples(element.shard, secrets.token_hex(4))
            file = write_table(self._store, f"{element.name.folder(self._run.id)}/{name}", table)
            said = UserFeatures.of(table, self._names)
        yield ShardReport(
            element.name,
            file,
            element.items,
            element.counts,
            element.min_event_ms,
            element.max_event_ms,
            element.features,
            element.exposure,
            said,
        )
