import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.items.feature_column import NEVER, Column

LINES = 5
values = st.lists(st.integers(0, 9), min_size=1, max_size=3)
changes = st.one_of(
    st.tuples(st.just("set"), st.integers(0, LINES - 1), values, st.integers(0, 3)),
    st.tuples(st.just("forget"), st.integers(0, LINES - 1)),
    st.tuples(st.just("grow")),
)


@given(st.lists(changes))
def test_a_row_has_the_newest_values_since_it_was_forgotten(made: list[tuple[object, ...]]) -> None:
    column = Column.empty(LINES, torch.int32, torch.device("cpu"))
    known: dict[int, tuple[list[int], int]] = {}
    for change, *how in made:
        if change == "grow":
            column.grow(len(column.values) + 2)
        elif change == "forget":
            column.forget(torch.tensor(how))
            known.pop(how[0], None)
        else:
            line, new, event_ms = how
            column.widen(len(new))
            column.set(torch.tensor([line]), torch.tensor([new], dtype=torch.int32), event_ms)
            if event_ms >= known.get(line, ((), NEVER))[1]:
                known[line] = new, event_ms
    width = column.values.shape[1]
    for line, (row, told_ms) in enumerate(zip(column.values.tolist(), column.told_ms.tolist(), strict=True)):
        expected, since = known.get(line, ([], NEVER))
        assert row == expected + [-1] * (width - len(expected))
        assert told_ms == since


def test_an_unknown_number_is_not_a_number() -> None:
    column = Column.empty(2, torch.float64, torch.device("cpu"))
    column.grow(3)
    assert column.of("values").isnan().all()
    assert column.of("told_ms").tolist() == [NEVER] * 3
