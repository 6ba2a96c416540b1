from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts.user_rows import Plain, rows_of, write_rows
from weir.contracts import CorruptArtefactError, Store, UserFile, UserKeys, UserTable, write_user_file
from weir.contracts.histories import lookup as user_lookup
from weir.contracts.histories.user_rows import unite, unknown_users

LENGTH = 3
KEYS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-5, 5), st.integers(2**62, 2**62 + 40))
PAIRS = st.lists(st.tuples(KEYS, st.integers(0, 2**45)), max_size=LENGTH)
PEOPLE = st.dictionaries(
    KEYS, st.tuples(st.integers(0, 2**40), PAIRS, st.lists(KEYS, max_size=6), st.booleans()), min_size=1, max_size=40
)
EXAMPLE: Plain = {
    user: (user + 5, [(item, 1000 * item) for item in range(1, user % 4)], list(range(user % 5)), user % 3 == 0)
    for user in range(-30, 70, 7)
}


@pytest.fixture(params=["one by one", "together", "in blocks", "among all"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All ways of looking users up."""
    monkeypatch.setattr(user_lookup, "_SINGLY", 1 << 20 if request.param == "one by one" else 0)
    if request.param in {"in blocks", "among all"}:
        monkeypatch.setattr(user_lookup, "_MANY", 1)
        monkeypatch.setattr(user_lookup, "_BLOCK", 3)
    monkeypatch.setattr(user_lookup, "_DENSE", 1 << 20 if request.param == "among all" else 0)
    found: str = request.param
    return found


def fields(file: UserFile, users: list[int]) -> Any:
    """What a file says of users that it holds, in the shape of `Plain`."""
    found = UserTable.of_shard((file,), LENGTH).find(UserKeys(np.array(users, np.int64)))
    (totals, items, times), seen = found.records(), found.seen(np.arange(len(users)))
    return {
        user: (int(totals[n]), items[n].tolist(), times[n].tolist(), seen.of(n).tolist(), bool(seen.bounded[n]))
        for n, user in enumerate(users)
    }


def unknown(file: UserFile, users: list[int]) -> bool:
    """Whether a file says nothing of any of the users."""
    found = UserTable.of_shard((file,), LENGTH).find(UserKeys(np.array(users, np.int64)))
    nothing = unknown_users(len(users), LENGTH)
    return not len(found.seen(np.arange(len(users))).items) and all(map(np.array_equal, found.records(), nothing))


def expected(plain: Plain) -> Any:
    return {
        user: (
            total,
            [0] * (LENGTH - len(pairs)) + [item for item, _ in pairs],
            [0] * (LENGTH - len(pairs)) + [time for _, time in pairs],
            seen,
            bounded,
        )
        for user, (total, pairs, seen, bounded) in plain.items()
    }


@pytest.mark.usefixtures("way")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PEOPLE, st.lists(KEYS, max_size=20), st.randoms(use_true_random=False), st.integers(1, 50))
def test_everybody_is_found_with_what_was_written_and_nobody_else(
    tmp_path_factory: pytest.TempPathFactory, plain: Plain, others: list[int], rng: Any, block: int
) -> None:
    store = Store(str(tmp_path_factory.mktemp("users")))
    entry = write_rows(store, "a.users", plain, LENGTH, block=block)
    assert entry == store.write("b.users", store.read("a.users"), rows=len(plain)).model_copy(
        update={"name": "a.users"}
    )
    file = UserFile(Path(store.path("a.users")))
    asked = [*plain, *plain]
    rng.shuffle(asked)
    assert fields(file, asked) == expected(plain)
    strangers = [other for other in others if other not in plain]
    assert unknown(file, strangers)
    assert file.users(0, file.count).tolist() == sorted(plain)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("keys", ["alike", "far apart"])
def test_badly_distributed_keys_cost_no_more_than_a_binary_search(tmp_path: Path, keys: str) -> None:
    users = range(1 << 14) if keys == "alike" else [n << 48 for n in range(1 << 14)]
    store = Store(str(tmp_path))
    write_rows(store, "a.users", {user: (1, [(user + 1, 7)], [], False) for user in users}, LENGTH, block=1 << 14)
    file = UserFile(tmp_path / "a.users")
    found = UserTable.of_shard((file,), LENGTH).find(UserKeys(np.array([*users, -1], np.int64)))
    assert found.records().items[:, -1].tolist() == [*(user + 1 for user in users), 0]


@pytest.mark.parametrize("part", ["starts", "users", "records", "seen", "items"])
def test_every_flipped_bit_shows_or_changes_nothing(tmp_path: Path, way: str, part: str) -> None:
    """Bits of one row of each section: whoever is asked for is right, or the file is named."""
    store = Store(str(tmp_path))
    write_rows(store, "a.users", EXAMPLE, LENGTH)
    data = (tmp_path / "a.users").read_bytes()
    page = ["starts", "users", "records", "seen", "items"].index(part) + 1
    absent = list(range(-40, 80, 7))
    noticed = 0
    for bit in range(0, 8 * 200, 3):
        altered = bytearray(data)
        altered[4096 * page + bit // 8] ^= 1 << bit % 8
        (tmp_path / "b.users").write_bytes(altered)
        file = UserFile(tmp_path / "b.users", "a.users")
        try:
            assert fields(file, list(EXAMPLE)) == expected(EXAMPLE)
            assert unknown(file, absent)
        except CorruptArtefactError as error:
            assert "b.users" in str(error)  # noqa: PT017 - whether it is raised depends on the bit
            noticed += 1
    if part == "starts":
        # Who searches among all keys does not read where those of a prefix start.
        assert noticed > 10 or (way == "among all" and not noticed)
    else:
        assert noticed > 400


def test_a_damaged_header_is_refused_when_the_file_is_opened(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_rows(store, "a.users", EXAMPLE, LENGTH)
    data = (tmp_path / "a.users").read_bytes()
    for byte in range(64):
        altered = bytearray(data)
        altered[byte] ^= 4
        (tmp_path / "b.users").write_bytes(altered)
        with pytest.raises(CorruptArtefactError, match=r"b\.users"):
            UserFile(tmp_path / "b.users", "a.users")
    for size in (0, 10, 4096, len(data) - 1):
        (tmp_path / "b.users").write_bytes(data[:size])
        with pytest.raises(CorruptArtefactError, match=r"b\.users"):
            UserFile(tmp_path / "b.users", "a.users")
    (tmp_path / "c.users").write_bytes(data)
    with pytest.raises(CorruptArtefactError, match="in the place of another"):
        UserFile(tmp_path / "c.users")
    with pytest.raises(CorruptArtefactError, match="missing"):
        UserFile(tmp_path / "never.users")


@pytest.mark.parametrize(("users", "seen"), [(14, 29), (16, 29), (15, 28)])
def test_other_counts_than_announced_leave_no_file(tmp_path: Path, users: int, seen: int) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(ValueError, match="announced"):
        write_user_file(store, "a.users", [rows_of(EXAMPLE, LENGTH)], users=users, seen=seen, length=LENGTH, bound=9)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=3, max_size=3), min_size=1, max_size=4),
       st.integers(1, 6))  # fmt: skip
def test_a_union_keeps_the_newest_of_each_user(parts: list[list[list[int]]], bound: int) -> None:
    columns = [rows_of({user: (0, [], seen, False) for user, seen in enumerate(part)}, 1).seen for part in parts]
    found = unite(columns, bound)
    for user in range(3):
        everything = [item for part in parts for item in part[user]]
        assert found.of(user).tolist() == everything[-bound:]
        assert found.bounded[user] == (len(everything) > bound)
