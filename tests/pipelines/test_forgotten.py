import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import hash_id, shards_of
from weir.pipelines.forgotten import Forgotten


@pytest.mark.parametrize(
    ("ids", "text", "named"),
    [
        (["user-1"], '{"user_id": "user-1"}', {"user-1"}),
        (["user-1"], '{"user_id": "user-12"}', set()),
        (["user-1"], '{"user_id": "a-user-1"}', set()),
        (["7"], '{"user_id": 7, "item_id": "x', {"7"}),
        (["7"], '{"user_id": 77}', set()),
        (["ann@example.org"], "torn: ann@example.org,", {"ann@example.org"}),
        (["ann@example.org"], "ann@example.organ", set()),
        (["ann@example.org"], "joann@example.org", set()),
        (["ann b", "ann"], '["ann b"]', {"ann b", "ann"}),
        (["zoë"], '{"user_id": "zo\\u00eb"', {"zoë"}),
        (["😀x"], '{"user_id": "\\ud83d\\ude00x"', {"😀x"}),
        (['a"b'], '{"user_id": "a\\"b"}', {'a"b'}),
        (['a"b'], '"a""b",item-1,1700000000', {'a"b'}),
        (["§§"], "x §§ y", {"§§"}),
        (["a", "b", "a"], "a c", {"a"}),
        (["user"], "", set()),
    ],
)
def test_an_id_is_named_as_a_whole_word(ids: list[str], text: str, named: set[str]) -> None:
    assert Forgotten.of(ids).named_in(text) == named


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1), st.booleans())
def test_a_line_of_json_names_its_user_however_it_is_spelt(ids: list[str], ascii_only: bool) -> None:
    forgotten = Forgotten.of(ids)
    for one in ids:
        assert one in forgotten.named_in(json.dumps({"user_id": one, "item_id": "i"}, ensure_ascii=ascii_only))


def test_keys_are_those_of_the_store() -> None:
    ids = [f"user-{number}" for number in range(50)]
    for secret in ("", "ab" * 16):
        forgotten = Forgotten.of([*ids, ids[0]], secret)
        assert forgotten.ids == tuple(ids)
        assert forgotten.keys.tolist() == [hash_id(one, secret) for one in ids]
        shards = forgotten.by_shard(4)
        assert sorted(key for keys in shards.values() for key in keys.tolist()) == sorted(forgotten.keys.tolist())
        for shard, keys in shards.items():
            assert (shards_of(keys, 4) == shard).all()
            assert (np.diff(keys) > 0).all()
