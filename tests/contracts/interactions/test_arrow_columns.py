import math
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.interactions.arrow_columns import (
    column,
    labels,
    not_utf8,
    numbers,
    parsed_numbers,
    spelled_numbers,
    text_lists,
    texts,
)

WORDS = [["a", "b"], None, []]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.large_string()),
        pa.list_(pa.string_view()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=str,
)
def test_lists_of_every_spelling_become_lists_of_strings(kind: pa.DataType) -> None:
    found = text_lists(pa.array(WORDS, kind), "tags")
    assert (found.type, found.to_pylist()) == (pa.list_(pa.string()), WORDS)


def test_single_values_become_lists_of_one_and_null_stays_null() -> None:
    assert text_lists(pa.array(["a", None]), "tag").to_pylist() == [["a"], None]
    assert text_lists(pa.array([7, None]), "tag").to_pylist() == [["7"], None]
    assert text_lists(pa.nulls(2), "tag").to_pylist() == [None, None]
    assert text_lists(pa.array([[1, 2]], pa.list_(pa.int16(), 2)), "tag").to_pylist() == [["1", "2"]]


@pytest.mark.parametrize("values", [[1.5], [[1.5]], [[["a"]]], [True], [{"a": "b"}]])
def test_other_types_are_named(values: list[object]) -> None:
    with pytest.raises(TypeError, match=r"column tag is of type .*; allowed are strings, integers and lists of them"):
        text_lists(pa.array(values), "tag")


def test_numbers_and_texts_say_what_they_take() -> None:
    assert numbers(pa.array([1, None], pa.int8()), "price").to_pylist() == [1.0, None]
    with pytest.raises(TypeError, match="column price is of type string; allowed are numbers"):
        numbers(pa.array(["1"]), "price")
    with pytest.raises(TypeError, match="column id is of type double; allowed are strings and integers"):
        texts(pa.array([1.5]), "id")


def test_a_missing_column_is_null_and_a_dictionary_is_spelled_out() -> None:
    table = pa.table({"a": pa.array(["x", "x"]).dictionary_encode()})
    assert column(table, "a").equals(pa.array(["x", "x"]))
    assert column(table, "b").equals(pa.nulls(2))


def test_bytes_that_are_no_text_are_marked() -> None:
    broken = pa.array([b"fine", b"\xff", None, "é".encode()]).cast(pa.binary())
    assert not_utf8(broken.view(pa.string())).tolist() == [False, True, False, False]


@given(st.lists(st.none() | st.uuids(), max_size=6), st.integers(0, 3))
def test_uuids_have_one_text(unique: list[UUID | None], start: int) -> None:
    storage = pa.array([one and one.bytes for one in unique], pa.binary(16))
    column = pa.ExtensionArray.from_storage(pa.uuid(), storage).slice(start)
    assert texts(column, "id").to_pylist() == [one and str(one) for one in unique[start:]]


@pytest.mark.parametrize(
    "kind", [pa.decimal32(9, 0), pa.decimal64(18, 0), pa.decimal128(38, 0), pa.decimal256(76, 0)], ids=str
)
@given(values=st.lists(st.none() | st.integers(-(10**9) + 1, 10**9 - 1), max_size=6))
def test_whole_decimals_have_the_text_of_integers(kind: pa.DataType, values: list[int | None]) -> None:
    column = pa.array([None if value is None else Decimal(value) for value in values], kind)
    assert texts(column, "id").to_pylist() == [None if value is None else str(value) for value in values]


def test_a_scale_below_0_leaves_no_exponent() -> None:
    assert texts(pa.array([Decimal(12300), None], pa.decimal128(5, -2)), "id").to_pylist() == ["12300", None]


@given(st.lists(st.none() | st.binary(max_size=4), max_size=6))
def test_bytes_are_the_text_that_they_hold_or_marked(values: list[bytes | None]) -> None:
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        found = texts(pa.array(values, kind), "id")
        for value, text, is_wrong in zip(values, found.cast(pa.binary()).to_pylist(), not_utf8(found), strict=True):
            assert text == value
            assert is_wrong == ("\ufffd" in (value or b"").decode(errors="replace") and "\ufffd".encode() != value)


def test_lists_and_labels_follow_the_same_rule() -> None:
    unique = UUID(int=7)
    lists = pa.array([[b"a", b"b"], None, []], pa.list_(pa.binary()))
    assert text_lists(lists, "tags").to_pylist() == [["a", "b"], None, []]
    assert text_lists(pa.array([[Decimal(1)], None], pa.list_(pa.decimal128(5, 0))), "tags").to_pylist() == [
        ["1"],
        None,
    ]
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([unique.bytes], pa.binary(16)))
    assert text_lists(ids, "tags").to_pylist() == [[str(unique)]]
    assert labels(pa.array([True, False, None]), "type").to_pylist() == ["true", "false", None]


shown = st.one_of(
    st.floats().map(repr),
    st.integers().map(str),
    st.from_regex(r"\A[+-]?[0-9]{0,3}\.?[0-9]{0,3}(e[+-]?[0-9]{1,2})?\Z"),
    st.sampled_from(
        ["nan", "NaN(ind)", "-nan(ind)", "inf", "-Infinity", "0x10", "1_000", "1,5", " 2 ", "٣", "", "heavy"]
    ),
)


@given(st.lists(shown, min_size=1, max_size=6))
def test_what_number_a_text_spells_depends_on_no_other(values: list[str]) -> None:
    found, unread = spelled_numbers(pa.array(values))
    for text, number, is_unread in zip(values, found.to_pylist(), unread.tolist(), strict=True):
        alone, alone_unread = spelled_numbers(pa.array([text]))
        assert (str(alone[0].as_py()), alone_unread[0]) == (str(number), is_unread)
        try:
            python = None if "_" in text or not text.isascii() else float(text)
        except ValueError:
            python = None
        if python is not None and not math.isnan(python):
            assert number == python


def test_weights_are_numbers_of_any_type_or_texts_that_spell_one() -> None:
    found, unread = parsed_numbers(pa.array(["2.5", " 1e1 ", "heavy", None]), "weight")
    assert (found.to_pylist(), unread.tolist()) == ([2.5, 10.0, None, None], [False, False, True, False])
    assert parsed_numbers(pa.array([Decimal("1.25")], pa.decimal128(9, 2)), "weight")[0].to_pylist() == [1.25]
    assert parsed_numbers(pa.array([b"3"]), "weight")[0].to_pylist() == [3.0]
    for values in ([True], [[1.0]]):
        with pytest.raises(TypeError, match="allowed are numbers"):
            parsed_numbers(pa.array(values), "weight")
