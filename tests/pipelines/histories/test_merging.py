from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.user_rows import write_rows
from weir.contracts import HistoryFile, LocalCache, Store, UserKeys, UserTable
from weir.contracts.histories.lookup import open_file
from weir.pipelines.histories import merging
from weir.pipelines.histories.merging import MOST_DELTAS, FileMerge, merge_plan

LENGTH, BOUND = 2, 3
people = st.dictionaries(
    st.integers(-20, 20), st.tuples(st.integers(0, 9), st.lists(st.integers(1, 99), max_size=2), st.integers(0, 4)),
    min_size=1,
)  # fmt: skip


def opened(store: Store, files: list[HistoryFile]) -> UserTable:
    return UserTable.of_shard(tuple(open_file(store, file, LocalCache()) for file in files), LENGTH)


@settings(max_examples=60, deadline=None)
@given(st.lists(people, min_size=1, max_size=5), st.integers(1, 7))
def test_a_merged_file_says_what_its_files_said(
    tmp_path_factory: pytest.TempPathFactory, found: list[Any], together: int
) -> None:
    store, files, item = Store(str(tmp_path_factory.mktemp("merge"))), list[HistoryFile](), 0
    for number, people in enumerate(found):
        plain = {}
        for user, (total, items, news) in people.items():
            plain[user] = (total, [(one, one) for one in items], list(range(item + 1, item + news + 1)), news > BOUND)
            item += news
        name = HistoryFile.path(0, "run", str(number))
        files.append(HistoryFile.of(name, write_rows(store, name, plain, LENGTH, bound=BOUND), 0, LENGTH))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "_USERS_AT_ONCE", together)
        merged = FileMerge(store, LocalCache(), BOUND)(files, "merge")
    assert merged.replaces == tuple(file.name for file in files)
    assert merged.rows == len({user for people in found for user in people})
    users, rows = UserKeys(np.arange(-25, 25)), np.arange(50)
    before, after = opened(store, files).find(users), opened(store, [merged]).find(users)
    for old, new in zip(before.records(), after.records(), strict=True):
        assert np.array_equal(old, new)
    for old, new in zip(before.seen(rows), after.seen(rows), strict=True):
        assert np.array_equal(old, new)


def test_a_merge_that_is_ended_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, left = Store(str(tmp_path)), [3]
    plain = {user: (1, [(1, 1)], [1], False) for user in range(100)}
    names = [HistoryFile.path(0, "run", token) for token in "ab"]
    files = [HistoryFile.of(name, write_rows(store, name, plain, LENGTH), 0, LENGTH) for name in names]

    def check() -> None:
        left[0] -= 1
        if not left[0]:
            raise InterruptedError

    monkeypatch.setattr(merging, "_USERS_AT_ONCE", 10)
    with pytest.raises(InterruptedError):
        FileMerge(store, LocalCache(), BOUND, check)(files, "merge")
    assert sorted(store.find()) == sorted(names)


@given(st.lists(st.integers(1, 10**9), max_size=40))
def test_a_plan_leaves_at_most_four_deltas(sizes: list[int]) -> None:
    count = merge_plan(sizes)
    if len(sizes) <= 1 + MOST_DELTAS:
        assert count == 0
    else:
        left = sizes[:-count]
        assert 2 <= count <= len(sizes)
        assert len(left) <= MOST_DELTAS
        assert not left or left[-1] >= 4 * sum(sizes[-count:])


@pytest.mark.parametrize(("base", "bound"), [(10, 12), (1000, 12), (10**6, 30)])
def test_rows_are_written_again_a_few_times_only(base: int, bound: int) -> None:
    """3,000 deltas of one size: what is written, by what came in; the base counts, too."""
    sizes, written = [base], 0
    for _ in range(3000):
        sizes.append(1)
        if count := merge_plan(sizes):
            merged = sum(sizes[-count:])
            sizes[-count:] = [merged]
            written += merged
        assert len(sizes) <= 1 + MOST_DELTAS
    assert written / 3000 < bound
