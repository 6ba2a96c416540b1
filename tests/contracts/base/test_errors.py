import copy

import pytest

from weir.contracts import CorruptArtefactError, UserError
from weir.contracts.storage.format import StoreFormatError
from weir.contracts.storage.store import UnfitStoreError


class HintedError(UserError):
    exit_status = 2
    hint = "do this"


def test_the_hint_follows_the_message() -> None:
    assert HintedError("broken").explain() == ["broken; do this"]
    assert HintedError("broken").exit_status == 2


def test_an_error_without_a_message_is_named() -> None:
    assert UserError().explain() == ["UserError"]
    assert UserError().exit_status == 1


@pytest.mark.parametrize("kind", [StoreFormatError, UnfitStoreError])
def test_errors_of_the_store_need_no_hint(kind: type[UserError]) -> None:
    assert kind("say what to do").explain() == ["say what to do"]


def test_a_damaged_file_is_named_with_a_way_out_after_copying_too() -> None:
    error = CorruptArtefactError("a/b", "has 3 bytes")
    for each in (error, copy.copy(error)):
        assert each.explain() == ["a/b: has 3 bytes; restore it from a copy; without one, start with another --store"]
        assert (each.path, each.problem, each.exit_status) == ("a/b", "has 3 bytes", 1)
