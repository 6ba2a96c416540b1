import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.items.ids import pack_ids, unpack_ids

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(st.none() | TEXTS))
def test_ids_survive_as_plain_arrays(ids: list[str | None]) -> None:
    sizes, data = pack_ids(np.array(ids, object))
    assert sizes.tolist() == [-1 if one is None else len(one.encode()) for one in ids]
    assert data.tobytes() == "".join(one or "" for one in ids).encode()
    assert unpack_ids(sizes, data).tolist() == ids
