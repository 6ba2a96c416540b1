"""A server whose bundle has a second phase, asked over gRPC: through Python's front and the compiled one."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.serving.process import ServerProcess
from tests.serving.rescorers import bilinear, form, with_scorer
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.serving.client import RetrievalClient, by_embedding, by_history

NATIVE = pytest.mark.skipif(
    importlib.util.find_spec("weir_front") is None, reason="needs the compiled front: make native, which needs Rust"
)


@pytest.mark.parametrize("front", ["python", pytest.param("native", marks=NATIVE)])
def test_plain_calls_are_answered_in_the_order_of_the_second_phase(tmp_path: Path, front: str) -> None:
    store, catalogue = Store(str(tmp_path / "store")), Catalogue.random(items=300)
    with_scorer(store, write_bundle(store, "v1", catalogue), 50, bilinear(form()))
    user = catalogue.user(["item-1", "item-2"])
    best = catalogue.top(user, 50)
    scores = catalogue.vectors[[catalogue.ids.index(item) for item in best]] @ (user @ form())
    order = np.argsort(-scores, kind="stable")[:10]
    with ServerProcess(store, front=front) as server, RetrievalClient(server.target) as client:
        answer = client.retrieve([by_history(["item-1", "item-2"], 10), by_embedding(user, 10)])
    for hits in answer.hits:
        assert list(hits.item_ids) == [best[place] for place in order]
        np.testing.assert_allclose(hits.scores, scores[order], rtol=1e-3, atol=1e-4)
