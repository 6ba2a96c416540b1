"""The chain of transforms of a stream: batches of a log without an end to a commit for each window."""

from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import FixedWindows

from weir.contracts import Commit, Store
from weir.pipelines.config import PipelineConfig
from weir.pipelines.stream.committer import CommitWindow
from weir.pipelines.stream.slices import Scatter, Slice

__all__ = ["BatchesToCommits"]


class BatchesToCommits(beam.PTransform[Any, Any]):
    """`Batch`es, each at the time of its watermark, to the `Commit` of each window, when the watermark passes its end.

    The engine does what it is good at: it reads partitions in parallel, brings what belongs to a window together and
    says when it is complete. What a row accounts for, it never decides.
    """

    def __init__(self, store: Store, config: PipelineConfig) -> None:
        super().__init__()
        self._store = store
        self._config = config

    def expand(self, batches: Any) -> Any:
        """Add the transforms."""
        store, config = self._store, self._config
        return (
            batches
            | "Scatter" >> beam.ParDo(Scatter(store, config.window_ms)).with_output_types(Slice)
            | "Window" >> beam.WindowInto(FixedWindows(config.window_ms / 1000))
            | "One committer" >> beam.Map(_to_one).with_output_types(tuple[int, Slice])
            | "Group the window" >> beam.GroupByKey()
            | "Commit" >> beam.ParDo(CommitWindow(store, config)).with_output_types(Commit)
        )


def _to_one(part: Slice) -> tuple[int, Slice]:
    return 0, part
