import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.items.last_seen import LastSeen

CALLS = st.lists(st.tuples(st.sets(st.integers(0, 29), max_size=20), st.integers(0, 40), st.booleans()), max_size=25)


@given(CALLS)
def test_rows_expire_as_a_scan_finds_them(calls: list[tuple[set[int], int, bool]]) -> None:
    times, watched = np.zeros(30, np.int64), set(range(10))
    seen = LastSeen(np.arange(10), times)
    for some, time, looks in calls:
        if looks:
            expired = [row for row in sorted(watched) if times[row] < time]
            assert seen.before(time, times).tolist() == expired
            watched -= set(expired)
            continue
        rows = np.array(sorted(row for row in some if row not in watched or times[row] < time), np.int64)
        times[rows] = time
        watched |= set(rows.tolist())
        seen.note(rows, time)
        now = np.array(sorted(watched), np.int64)
        seen.tidy(len(watched), now.copy, times)


def test_notes_that_are_out_of_date_are_dropped_now_and_then() -> None:
    times, rows = np.zeros(2000, np.int64), np.arange(2000)
    seen = LastSeen(rows, times)
    for time in range(1, 100):
        times[rows] = time
        seen.note(rows, time)
        seen.tidy(len(rows), lambda: rows, times)
        assert seen.notes <= 5 * 2000
    assert seen.before(99, times).tolist() == []
    assert seen.before(100, times).tolist() == rows.tolist()
