import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from weir.contracts import Store, WindowLog
from weir.page.tags import Tags
from weir.pipelines.config import PipelineConfig
from weir.pipelines.ingest import ingest

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]), st.lists(st.sampled_from(["jazz", "dub"]), unique=True), st.integers(0, 9)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=5)
@given(ROWS)
def test_an_item_has_the_newest_values_that_the_log_gave_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, list[str], int]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("tags")
    lines = [
        {"user_id": "u", "item_id": item, "timestamp": 1_700_000_000 + 3600 * at, "genre": genre, "price": price}
        for at, (item, genre, price) in enumerate(rows)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {"log": str(folder / "log.jsonl"), "metrics_port": 0, "window_seconds": 3600}
    features = {"item_features": {"categorical": ["genre"], "dense": ["price"]}}
    store = Store(str(folder / "store"))
    ingest(store, PipelineConfig.model_validate(config | features), registry=CollectorRegistry())
    tags = Tags(store)
    tags.add(WindowLog(store).committed())
    newest = {item: (genre, price) for item, genre, price in rows}
    for item in ("a", "b", "c", "unknown"):
        words = tags.of(item)
        if item not in newest:
            assert words == []
            continue
        genre, price = newest[item]
        assert words[-1] == f"price {price}"
        # An empty list says nothing new, so an earlier one stays within a window only.
        if genre:
            assert words[0].startswith("genre ")
            assert set(words[0].removeprefix("genre ").split(", ")) == set(genre)


def test_a_log_without_features_has_no_tags(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    (tmp_path / "log.jsonl").write_text('{"user_id": "u", "item_id": "a", "timestamp": 1700000000}\n')
    config = PipelineConfig(log=str(tmp_path / "log.jsonl"), metrics_port=0)
    ingest(store, config, registry=CollectorRegistry())
    tags = Tags(store)
    tags.add(WindowLog(store).committed())
    assert tags.of("a") == []
