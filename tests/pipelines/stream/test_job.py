"""The chain on a Beam runner; that of an engine is in tests/integration/test_stream.py."""

from pathlib import Path
from random import Random

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import TimestampedValue

from tests.pipelines.stream.simulation import random_log, settings, start
from tests.pipelines.stream.test_committer import check
from weir.contracts import LogState, Store
from weir.pipelines.stream.job import BatchesToCommits
from weir.pipelines.stream.reader import Batch
from weir.pipelines.stream.slices import slices_of


def test_what_a_window_brings_is_one_commit(tmp_path: Path) -> None:
    store, config, log = Store(str(tmp_path / "store")), settings(tmp_path), random_log(Random(3), 400)
    start(store, config, log)
    first = LogState.open(store).number
    # All rows come late: with one window, since over a bounded input this runner knows no order of windows.
    late = 10**13
    whole = [one.batch(0, one.size, late) for one in log]
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        batches = pipeline | beam.Create(whole) | beam.Map(_at_its_watermark).with_output_types(Batch)
        _ = batches | BatchesToCommits(store, config)
    check(store, log)
    assert LogState.open(store).number == first + 1


def _at_its_watermark(batch: Batch) -> TimestampedValue:
    return TimestampedValue(batch, batch.watermark_ms / 1000)


def test_rows_come_with_their_window_or_with_that_of_the_watermark(tmp_path: Path) -> None:
    [one, *_] = random_log(Random(5), 200)
    watermark = 1_700_000_015_000
    found = dict(slices_of(one.batch(0, one.size, watermark), 10_000, ""))
    assert min(found) == 1_700_000_010_000
    assert [start_ms for start_ms, part in found.items() if part.tile] == [1_700_000_010_000]
    positions = np.concatenate([part.rows.column("position").to_numpy() for part in found.values()])
    assert sorted(positions.tolist()) == sorted(one.batch(0, one.size, 0).rows.column("position").to_pylist())
    for start_ms, part in found.items():
        times = part.rows.column("timestamp").to_numpy()
        assert (np.maximum(times // 10_000 * 10_000, min(found)) == start_ms).all()
    tile = found[1_700_000_010_000].tile
    assert tile is not None
    later = {at: part.rows.column("position").to_numpy() for at, part in found.items() if not part.tile}
    assert tile.open == {at: (rows.min(), rows.max()) for at, rows in later.items()}
