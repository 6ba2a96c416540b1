"""An item that nobody has clicked is answered within ten seconds of its appearance in the catalogue."""

import json
import time
from pathlib import Path

import pytest

from tests.serving.colds import names, with_cold, write_warm
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue
from weir.contracts import Store
from weir.serving.bundles.catalogue import CatalogueFiles
from weir.serving.client import RetrievalClient, by_history, by_item

WITHIN = 10.0


def write(path: Path, catalogue: Catalogue, count: int) -> None:
    """Write the first items of a catalogue, with tags and features."""
    with path.with_suffix(".draft").open("w") as file:
        for item, embedding in zip(catalogue.ids[:count], catalogue.embeddings[2:].tolist(), strict=False):
            features = dict(zip(names().dense, embedding, strict=True))
            file.write(json.dumps({"item_id": item, "tags": ["new"] if item == "item-199" else [], **features}) + "\n")
    path.with_suffix(".draft").replace(path)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_item_that_appears_is_answered_marked_and_counted(tmp_path: Path, processes: int) -> None:
    store, path, catalogue = Store(str(tmp_path / "store")), tmp_path / "items.jsonl", with_cold(Catalogue.random())
    write_warm(store, "v1", catalogue, "IVF4,SQfp16", nprobe=4)
    write(path, catalogue, 160)
    files = CatalogueFiles(str(path), features=names())
    with ServerProcess(store, files, processes=processes) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        assert client.retrieve([by_item("item-199", 5)]).hits[0].fallback
        assert server.metric("weir_cold_items") == 0
        write(path, catalogue, 200)
        appeared = time.monotonic()
        while server.metric("weir_cold_items") != 40:
            assert time.monotonic() < appeared + WITHIN
            time.sleep(0.02)
        while (hits := client.retrieve([by_item("item-3", 1)], any_tags=["new"]).hits[0]).item_ids != ["item-199"]:
            assert time.monotonic() < appeared + WITHIN
            time.sleep(0.02)
        assert hits.cold == [True]
        assert hits.complete
        top = client.retrieve([by_history(["item-190"], 20)], exact=True).hits[0]
        assert top.item_ids == catalogue.top(catalogue.user(["item-190"]), 20)
        assert top.cold == [int(item.partition("-")[2]) >= 160 for item in top.item_ids]
        assert server.metric("weir_cold_hits_total") >= 1 + sum(top.cold)
