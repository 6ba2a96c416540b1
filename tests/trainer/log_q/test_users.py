import numpy as np
import pytest

from weir.sketches import CountMinSketch, FrequencyView
from weir.trainer.log_q.users import Users

HOUR_MS = 3_600_000


def window(users: Users, keys: list[int], event_ms: int) -> None:
    sketch, found = CountMinSketch(1 << 10), np.array(keys, np.int64)
    sketch.update(found)
    users.add(sketch.to_bytes(), found, event_ms)


def of(half_life: float | tuple[float, ...] = 3600.0) -> Users:
    return Users(FrequencyView(half_life))


def test_counts_fade_and_distinct_users_do_not() -> None:
    users = of()
    window(users, [11] * 8 + [22] * 4, 0)
    assert users.counts(np.array([11, 22])).tolist() == [8, 4]
    assert users.total == 12
    window(users, [33, 33], HOUR_MS)
    assert users.counts(np.array([11, 22, 33])) == pytest.approx([4, 2, 2])
    assert users.total == pytest.approx(8)
    assert round(users.distinct.count()) == 3
    window(users, [33], 40 * HOUR_MS)
    assert users.total == pytest.approx(1)
    assert round(users.distinct.count()) == 3


def test_whoever_occurs_counts_half_at_least() -> None:
    users = of()
    assert users.counts(np.array([11])).tolist() == [0.5]
    assert users.total == 0
    window(users, [11], 0)
    window(users, [22], 10 * HOUR_MS)
    assert users.counts(np.array([11, 22])) == pytest.approx([0.5, 1])


def test_a_late_window_enters_faded() -> None:
    users = of()
    window(users, [11], 2 * HOUR_MS)
    window(users, [22] * 8, 0)
    assert users.counts(np.array([11, 22])) == pytest.approx([1, 2])


@pytest.mark.parametrize("half_life", [3600.0, (600.0, 3600.0)])
def test_survives_its_tensors_and_goes_on_alike(half_life: float | tuple[float, ...]) -> None:
    users = of(half_life)
    window(users, [11] * 8 + list(range(100, 150)), 0)
    other = of(half_life)
    other.load_state_dict({name: value.copy() for name, value in users.state_dict().items()})
    keys = np.array([11, 22, 120])
    for _ in range(2):
        assert other.counts(keys).tolist() == users.counts(keys).tolist()
        assert other.total == users.total
        assert other.distinct.count() == users.distinct.count()
        assert users.state_dict().keys() == other.state_dict().keys()
        assert all(value.tobytes() == other.state_dict()[name].tobytes() for name, value in users.state_dict().items())
        for one in (users, other):
            window(one, [22, 22, 11], HOUR_MS)


def test_survives_its_tensors_before_the_first_window() -> None:
    other = of()
    other.load_state_dict(of().state_dict())
    assert (other.total, other.counts(np.array([11])).tolist()) == (0, [0.5])
