"""A real log, counted again with numpy alone."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry

from weir.contracts import Store, WindowLog
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.sketches import CountMinSketch

LOG = Path(os.environ.get("WEIR_DATA", "../shared/data")) / "ml-1m/interactions.parquet"
WEEK = 7 * 86_400


@pytest.mark.data
@pytest.mark.skipif(not LOG.exists(), reason=f"{LOG} is not there (set WEIR_DATA)")
def test_every_rating_is_in_its_window_and_the_sketches_add_up(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    config = PipelineConfig(log=str(LOG), window_seconds=WEEK, timestamp_unit="s", metrics_port=0)
    assert ingest(store, config, registry=CollectorRegistry()).valid == 1_000_209
    times = pq.read_table(LOG, columns=["timestamp"])["timestamp"].to_numpy()
    starts, counts = np.unique(times // WEEK * WEEK, return_counts=True)
    log = WindowLog(store)
    manifests = log.committed()
    assert [manifest.start_ms for manifest in manifests] == (1000 * starts).tolist()
    assert [manifest.counts.events for manifest in manifests] == counts.tolist()
    largest = manifests[int(np.argmax(counts))]
    sketch, items = CountMinSketch.from_bytes(log.sketch(largest)), log.items(largest)
    assert sketch.total == counts.max()
    assert (sketch.estimate(items["item_key"].to_numpy()) >= items["count"].to_numpy()).all()
