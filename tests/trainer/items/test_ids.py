from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import lines_of_ranks
from weir.trainer.items import ids as packing
from weir.trainer.items.ids import ItemIds, pack_ids, unpack_ids
from weir.trainer.items.rows import TableRows

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(st.none() | TEXTS))
def test_ids_survive_as_plain_arrays(ids: list[str | None]) -> None:
    sizes, data = pack_ids(np.array(ids, object))
    assert sizes.tolist() == [-1 if one is None else len(one.encode()) for one in ids]
    assert data.tobytes() == "".join(one or "" for one in ids).encode()
    assert unpack_ids(sizes, data).tolist() == ids


@given(st.lists(st.none() | TEXTS), st.randoms(use_true_random=False))
def test_packed_ids_are_taken_piece_by_piece(names: list[str | None], draw: Random) -> None:
    rows, kept = draw.sample(range(len(names)), len(names)), ItemIds(len(names))
    with patch.object(packing, "_AT_ONCE", 3):
        kept.put_packed(TableRows(np.array(rows, np.int64)), *pack_ids(np.array(names, object)))
    assert [kept.kept[row] for row in rows] == names


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_share_ids_and_each_keeps_its_own(ranks: int, tmp_path: Path) -> None:
    kept = lines_of_ranks(ranks, Path(__file__).with_name("ids_of_ranks.py"), tmp_path)
    assert sum(kept) == 64
    assert max(kept) - min(kept) <= 1
