"""A real log through the commands that a user types; see the README of `WEIR_DATA` for where the data come from."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.serving.process import ServerProcess
from weir.contracts import BundleFile, BundleLog, Store
from weir.contracts.base import columns
from weir.serving.client import RetrievalClient, by_user

DATA = Path(os.environ.get("WEIR_DATA", "../shared/data"))
LOG = DATA / "ml-1m" / "interactions.parquet"
WEEK = 7 * 86_400

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not LOG.exists(), reason=f"{LOG} is absent; point WEIR_DATA at the folder of the data sets"),
]


def weir(*arguments: str) -> Any:
    """Run a command with --json and return what it prints."""
    command = [sys.executable, "-m", "weir", *arguments, "--json"]
    done = subprocess.run(
        command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ingest(log: Path, store: Path) -> Any:
    settings = [f"pipeline.window_seconds={WEEK}", "pipeline.metrics_port=0", "pipeline.history_length=20"]
    return weir("ingest", "--log", str(log), "--store", str(store), *(f"--set={setting}" for setting in settings))


def test_answers_equal_brute_force_over_what_was_exported(tmp_path: Path) -> None:
    pq.write_table(pq.read_table(LOG).slice(0, 60_000), tmp_path / "log.parquet")
    ingest(tmp_path / "log.parquet", tmp_path / "store")
    model = ["tower.dimension=16", "tower.history_length=20", "evaluation_examples=50", "metrics_port=0"]
    weir("train", "--store", str(tmp_path / "store"), *(f"--set=trainer.{setting}" for setting in model))
    store = Store(str(tmp_path / "store"))
    bundles = BundleLog(store)
    manifest = bundles.manifest(bundles.current() or "none")
    vectors = np.load(io.BytesIO(bundles.read(manifest, BundleFile.VECTORS)))
    items = pq.read_table(pa.BufferReader(bundles.read(manifest, BundleFile.ITEMS)))
    ids = np.array(items[columns.ITEM_ID].to_pylist())
    place = {item: row for row, item in enumerate(ids.tolist())}
    users = pq.read_table(tmp_path / "log.parquet")["user_id"].unique().to_pylist()[:200]
    queries = [by_user(str(user), 20) for user in users]
    with ServerProcess(store) as server:
        server.serving(manifest.version)
        with RetrievalClient(server.target) as client:
            made, answer = client.embed(queries), client.retrieve(queries)
    for vector, hits in zip(made, answer.hits, strict=True):
        scores = vectors @ np.asarray(vector, np.float32)
        best = np.argsort(-scores, kind="stable")[:20]
        # FAISS adds in another order than numpy: items may change places where float32 cannot tell their scores apart
        # (sums of 16 products of unit vectors are exact to 16 * 2^-24), and nowhere else.
        for served, wanted in zip(hits.item_ids, ids[best].tolist(), strict=True):
            assert served == wanted or abs(scores[place[served]] - scores[place[wanted]]) < 16 * 2**-24
        assert len(set(hits.item_ids)) == 20
        np.testing.assert_allclose(hits.scores, scores[best], rtol=0, atol=16 * 2**-24)
