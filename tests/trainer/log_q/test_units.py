import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.items.live import live_rows
from weir.trainer.items.rows import TableRows
from weir.trainer.log_q.units import Units
from weir.trainer.ranks.workers import Workers

CPU = torch.device("cpu")


@given(st.lists(st.integers(2, 63), unique=True), st.integers(1, 4))
def test_each_row_has_one_line_of_one_rank(listed: list[int], ranks: int) -> None:
    rows, found = TableRows(np.array(listed, np.int64)), dict[int, float]()
    delta = {"units": torch.from_numpy(rows)[:, None].double(), "chosen": torch.ones(len(rows), dtype=torch.int8)}
    for rank in range(ranks):
        units = Units(1, CPU, Workers(rank, ranks))
        units.clear(64)
        _, mine = units.own(rows)
        units.load_rows(TableRows(rows[mine]), {line: values[mine] for line, values in delta.items()})
        own, lines = units.live(live_rows(set(listed)))
        assert units.units.sum() == own.sum()
        found |= dict(zip(own.tolist(), units.units[lines, 0].tolist(), strict=True))
    assert found == {row: float(row) for row in listed}


def test_lines_stay_when_the_table_grows_and_new_rows_have_nothing() -> None:
    units = Units(2, CPU, Workers())
    units.load(4, {"units": torch.arange(8.0).view(4, 2), "chosen": torch.ones(4, dtype=torch.int8)})
    units.grow(8)
    assert units.units.flatten().tolist() == [*range(8), *[0] * 8]
    assert units.chosen.tolist() == [1] * 4 + [0] * 4
    assert units.places.capacity == 8


def test_a_single_half_life_leaves_no_choice_to_store() -> None:
    one, two = Units(1, CPU, Workers()), Units(2, CPU, Workers())
    assert (one.stored, two.stored) == (("units",), ("units", "chosen"))
    one.load(4, {"units": torch.ones(4, 1)})
    assert one.chosen.tolist() == [0] * 4
