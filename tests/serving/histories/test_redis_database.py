from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.contracts.histories.test_user_file import EXAMPLE, LENGTH, PEOPLE
from tests.contracts.user_rows import Plain, write_rows
from weir.contracts import Store, UserFile, UserKeys, UserTable
from weir.serving.histories.redis_database import decode, encode


def values_of(folder: Path, plain: Plain) -> tuple[UserKeys, list[bytes]]:
    write_rows(Store(str(folder)), "a.users", plain, LENGTH)
    users = UserKeys(np.array(sorted(plain), np.int64))
    return users, encode(UserTable.of_shard((UserFile(folder / "a.users"),), LENGTH).find(users))


def expected(plain: Plain) -> Any:
    return [([item for item, _ in plain[user][1] if item], plain[user][2], plain[user][3]) for user in sorted(plain)]


def said(found: Any) -> Any:
    items, seen, _ = found
    return [
        ([item for item in items[n].tolist() if item], seen.of(n).tolist(), bool(seen.bounded[n]))
        for n in range(len(items))
    ]


@settings(max_examples=60, deadline=None)
@given(PEOPLE)
def test_a_value_says_what_the_file_says(tmp_path_factory: pytest.TempPathFactory, plain: Plain) -> None:
    users, values = values_of(tmp_path_factory.mktemp("users"), plain)
    found = decode(users, values, LENGTH)
    assert not found.damaged.any()
    assert said(found) == expected(plain)


def test_every_flipped_bit_makes_its_user_unknown_and_no_other(tmp_path: Path) -> None:
    users, values = values_of(tmp_path, EXAMPLE)
    whole = said(decode(users, values, LENGTH))
    for place, value in enumerate(values):
        for bit in range(0, 8 * len(value), 5):
            altered = bytearray(value)
            altered[bit // 8] ^= 1 << bit % 8
            found = decode(users, [*values[:place], bytes(altered), *values[place + 1 :]], LENGTH)
            assert found.damaged.tolist() == [n == place for n in range(len(users))]
            assert said(found) == [*whole[:place], ([], [], True), *whole[place + 1 :]]


def test_values_of_others_and_cut_ones_are_damaged_and_absent_ones_are_not(tmp_path: Path) -> None:
    users, values = values_of(tmp_path, EXAMPLE)
    swapped = [values[1], values[0][:-8], values[2][:9], b"", None]
    found = decode(UserKeys(users[:5]), swapped, LENGTH)
    assert found.damaged.tolist() == [True, True, True, True, False]
    assert said(found) == [([], [], True)] * 4 + [([], [], False)]
