from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.towers.plain import LENGTH, left_padded
from weir.trainer.config import TowerConfig
from weir.trainer.towers.recency import Recency

TOWER = Recency(TowerConfig(dimension=8, history_length=LENGTH))


@given(st.lists(st.integers(0, LENGTH), min_size=1, max_size=4), st.integers(1, LENGTH))
def test_a_place_sees_itself_and_the_items_before_it(counts: list[int], length: int) -> None:
    _, mask = left_padded([min(count, length) for count in counts], length)
    age, seen = TOWER.see(mask)
    for place in range(length):
        assert age[place, : place + 1].tolist() == list(range(place, -1, -1))
        for row, items in enumerate(mask.tolist()):
            wanted = [other == place or (other < place and items[other]) for other in range(length)]
            assert seen[row, place].tolist() == wanted
    newest_age, newest_seen = TOWER.see(mask, newest=True)
    assert (newest_age == age[-1:]).all()
    assert (newest_seen == seen[:, -1:]).all()
