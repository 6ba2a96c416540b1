import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weir.trainer.negatives import accidental_hits

small = st.integers(0, 12)


@given(
    hnp.arrays(np.int64, st.integers(0, 15), elements=small),
    hnp.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=small),
)
def test_hits_are_what_comparing_everything_gives(columns: np.ndarray, forbidden: np.ndarray) -> None:
    found = accidental_hits(torch.from_numpy(columns), torch.from_numpy(forbidden)).tolist()
    wanted = [[row, at] for row, items in enumerate(forbidden) for at, item in enumerate(columns) if item in items]
    assert sorted(found) == wanted
