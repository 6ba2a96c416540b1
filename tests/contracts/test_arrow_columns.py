import pyarrow as pa
import pytest

from weir.contracts.arrow_columns import column, not_utf8, numbers, text_lists, texts

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


@pytest.mark.parametrize("values", [[1.5], [[1.5]], [[["a"]]], [b"raw"], [True], [{"a": "b"}]])
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
