""""""

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weir.contracts import FeatureNames, Label, interaction_schema
from weir.readers import Block, BlockId, Lines, LogColumns, LogConfig, Reason, TableRows, Validator, validate
from weir.readers.blocks import cuts
from weir.readers.decode import Decoded, LineDecoder
from weir.readers.features import with_features
from weir.readers.lines import MAX_LINE_BYTES


@given(st.lists(st.integers(0, 9)), st.integers(1, 20), st.integers(1, 5))
def test_cuts_are_full_and_within_their_bounds(sizes: list[int], limit: int, rows: int) -> None:
    found = list(cuts(np.array(sizes, np.int64), limit, rows))
    assert [place for start, stop in found for place in range(start, stop)] == list(range(len(sizes)))
    for start, stop in found:
        assert stop - start == 1 or (stop - start <= rows and sum(sizes[start:stop]) <= limit)
        assert stop == len(sizes) or stop - start == rows or sum(sizes[start : stop + 1]) > limit


def test_without_features_nothing_is_added() -> None:
    rows = pa.table({"timestamp": [1]})
    assert with_features(rows, {}, FeatureNames()) is rows


def test_features_are_one_struct_in_the_order_of_the_settings() -> None:
    names = FeatureNames(categorical=["genre"], dense=["timestamp"])
    found = {"timestamp": pa.array([0.5, None]), "genre": pa.array([["jazz"], None], pa.list_(pa.string()))}
    rows = with_features(pa.table({"timestamp": [1, 2]}), found, names)
    assert rows["timestamp"].to_pylist() == [1, 2]
    assert rows["features"].to_pylist() == [{"genre": ["jazz"], "timestamp": 0.5}, {"genre": None, "timestamp": None}]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"event_types": {"click": "good"}}, "positive"),
        ({"columns": {"user_id": "id", "item_id": "id"}}, "user_id and item_id"),
        ({"item_features": {"dense": ["weight"]}}, "'weight', which is read as weight already"),
        ({"item_features": {"categorical": ["a"], "dense": ["a"]}}, "'a' is named twice"),
        ({"item_features": {"categorical": ["item_key"]}}, "'item_key' is a column of every window's items"),
        ({"item_features": {"dense": ["count"]}}, "'count' is a column"),
        ({"user_features": {"dense": ["weight"]}}, "user_features names 'weight', which is read as weight already"),
        (
            {"item_features": {"dense": ["a"]}, "user_features": {"categorical": ["a"]}},
            "user_features names 'a', which is named by item_features already",
        ),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        LogConfig(**settings)


def test_features_of_items_and_users_are_read_together_and_there_is_room_for_both() -> None:
    numbers = [f"{number}" for number in range(32)]
    items = {"categorical": ["genre"], "dense": [f"i{one}" for one in numbers]}
    # The columns of items are none of theirs.
    users = {"categorical": ["count", "lives"], "dense": [f"u{one}" for one in numbers]}
    found = LogConfig(item_features=items, user_features=users).features
    assert found.categorical == ("genre", "count", "lives")
    assert found.dense == (*items["dense"], *users["dense"])


def test_every_setting_is_described() -> None:
    for model in (LogConfig, LogColumns):
        assert all(field.description for field in model.model_fields.values())


def test_naive_times_are_utc_and_types_become_labels() -> None:
    config = LogConfig(min_time="2000-01-01T00:00:00", event_types={"a": "positive", "b": "ignore"})
    assert config.min_time.timestamp() == 946_684_800
    assert config.labels() == {"a": Label.POSITIVE, "b": Label.IGNORE}


GOOD: dict[str, Any] = {"user_id": "u", "item_id": "i", "timestamp": 1_700_000_000}


def validated(lines: list[bytes], **settings: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Rows and letters; the position of a line is ten times its number."""
    block = Block(BlockId("log.jsonl", 0), Lines(lines, np.arange(len(lines)) * 10))
    batch, letters = Validator(LogConfig(**settings)).validate(block)
    names = (FeatureNames(**settings.get(kind, {})) for kind in ("item_features", "user_features"))
    assert batch.rows.schema == interaction_schema(*names)
    assert batch.dead == len(letters.letters)
    return batch.rows.to_pylist(), list(letters.letters)


def line(**changes: Any) -> bytes:
    fields = {name: value for name, value in (GOOD | changes).items() if value is not ...}
    return json.dumps(fields).encode()


BAD = [
    (b'{"user_id": "u", ', Reason.MALFORMED_JSON),
    (b"user_id=u", Reason.MALFORMED_JSON),
    (b'{"user_id":"u","item_id":"i","timestamp":NaN}', Reason.UNPARSABLE_TIMESTAMP),
    (line() + b" {}", Reason.MALFORMED_JSON),
    (line()[:-1] + b',"x":' + b"[" * 100_000, Reason.MALFORMED_JSON),
    (b'{"user_id":"\\ud800","item_id":"i","timestamp":1700000000}', Reason.MALFORMED_JSON),
    (b'{"user_id":"\xff\xfe","item_id":"i","timestamp":1700000000}', Reason.NOT_UTF8),
    (b"[1, 2]", Reason.NOT_AN_OBJECT),
    (b"17", Reason.NOT_AN_OBJECT),
    (line(user_id=...), Reason.MISSING_FIELD),
    (line(item_id=...), Reason.MISSING_FIELD),
    (line(timestamp=...), Reason.MISSING_FIELD),
    (line(user_id=None), Reason.MISSING_FIELD),
    (line(user_id=17.0), Reason.WRONG_TYPE),
    (line(item_id=1e3), Reason.WRONG_TYPE),
    (line(user_id=True), Reason.WRONG_TYPE),
    (line(item_id=["i"]), Reason.WRONG_TYPE),
    (line(timestamp=True), Reason.WRONG_TYPE),
    (line(event_id=1.7), Reason.WRONG_TYPE),
    (line(weight="heavy"), Reason.WRONG_TYPE),
    (line()[:-1] + b',"weight":1e999}', Reason.NON_FINITE_WEIGHT),
    (line(user_id=""), Reason.EMPTY_ID),
    (line(event_id=""), Reason.EMPTY_ID),
    (line(user_id="x" * 513), Reason.ID_TOO_LONG),
    (line(item_id="x" * 1_000_000), Reason.ID_TOO_LONG),
    (line(user_id="é" * 257), Reason.ID_TOO_LONG),
    (line(attribution_token="t" * 5000), Reason.TOKEN_TOO_LONG),
    (line(timestamp="yesterday"), Reason.UNPARSABLE_TIMESTAMP),
    (line(timestamp="2024-01-01T00:00:00"), Reason.UNPARSABLE_TIMESTAMP),
    (line(timestamp="17e"), Reason.UNPARSABLE_TIMESTAMP),
    (line(timestamp="20231114"), Reason.TIMESTAMP_OUT_OF_RANGE),
    (line(timestamp=-5), Reason.TIMESTAMP_OUT_OF_RANGE),
    (line(timestamp=0), Reason.TIMESTAMP_OUT_OF_RANGE),
    (line(timestamp=10**19), Reason.TIMESTAMP_OUT_OF_RANGE),
    (line(timestamp=10**400), Reason.TIMESTAMP_OUT_OF_RANGE),
    (line(timestamp=-(10**30)), Reason.TIMESTAMP_OUT_OF_RANGE),
    (line(timestamp=1e300), Reason.TIMESTAMP_OUT_OF_RANGE),
    (line(timestamp="1969-01-01T00:00:00Z"), Reason.TIMESTAMP_OUT_OF_RANGE),
    (line(timestamp=0)[:-2] + b"1" * 5000 + b"}", Reason.MALFORMED_JSON),
    (line(weight=-1), Reason.NEGATIVE_WEIGHT),
    (line(weight=1e6), Reason.WEIGHT_TOO_LARGE),
    (line(weight=100.00001), Reason.WEIGHT_TOO_LARGE),
    (line(weight=1e300), Reason.NON_FINITE_WEIGHT),
    (b" " * 10 + b'"' + b"x" * MAX_LINE_BYTES, Reason.LINE_TOO_LONG),
]


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=[f"{reason}-{number}" for number, (_, reason) in enumerate(BAD)])
def test_bad_line_becomes_one_letter_and_spares_its_neighbours(bad: bytes, reason: Reason) -> None:
    rows, letters = validated([line(user_id="before"), bad, line(user_id="after")])
    assert [(row["user_id"], row["position"]) for row in rows] == [("before", 0), ("after", 20)]
    [letter] = letters
    assert (letter.reason, letter.position, letter.partition, letter.size) == (reason, 10, "log.jsonl", len(bad))
    assert letter.detail
    assert len(letter.raw) <= 1400


def test_raw_is_text_where_it_is_text_and_base64_else() -> None:
    _, [text, cut, binary] = validated([b"ein \xc3\xa9", b"x" * 1023 + "é".encode(), b"\xff\xfe"])
    assert (text.encoding, text.raw) == ("utf-8", "ein é")
    assert (cut.encoding, cut.raw) == ("utf-8", "x" * 1023)
    assert (binary.encoding, binary.raw) == ("base64", "//4=")


def test_blank_lines_are_nothing_and_keep_positions() -> None:
    rows, letters = validated([b"", line(), b"  \r", line(user_id="v") + b"\r", b""])
    assert [(row["user_id"], row["position"]) for row in rows] == [("u", 10), ("v", 30)]
    assert not letters


def test_two_values_on_one_line_next_to_a_blank_line_do_not_shift_the_others() -> None:
    rows, [letter] = validated([line(user_id="a") + line(user_id="b"), line(user_id="c")])
    assert [(row["user_id"], row["position"]) for row in rows] == [("c", 10)]
    assert letter.reason == Reason.MALFORMED_JSON


def test_optional_fields_and_renamed_columns() -> None:
    spelled = {"user_id": "who", "item_id": "what", "timestamp": "when", "event_id": "n", "weight": "w"}
    names = LogColumns(**spelled, attribution_token="tok")  # noqa: S106
    full = {"who": "u", "what": "i", "when": "2023-11-14T22:13:20Z", "n": "e", "w": 2, "tok": "token", "other": [1]}
    bare = {"who": "u", "what": "i", "when": 1_700_000_000_000.0}
    rows, letters = validated([json.dumps(full).encode(), json.dumps(bare).encode()], columns=names)
    assert not letters
    shared = {"user_id": "u", "item_id": "i", "timestamp": 1_700_000_000_000, "label": 1}
    assert rows == [
        shared | {"event_id": "e", "weight": 2.0, "attribution_token": "token", "position": 0},
        shared | {"event_id": None, "weight": 1.0, "attribution_token": None, "position": 10},
    ]


def test_event_types_give_labels_and_unknown_ones_follow_the_policy() -> None:
    types = {"click": "positive", "skip": "negative", "view": "ignore"}
    lines = [line(event_type=kind) for kind in ("click", "skip", "view", "wink", ...)]
    rows, letters = validated(lines, event_types=types)
    assert [row["label"] for row in rows] == [Label.POSITIVE, Label.NEGATIVE, Label.IGNORE]
    assert [letter.reason for letter in letters] == [Reason.UNKNOWN_EVENT_TYPE] * 2
    assert "wink" in letters[0].detail
    rows, letters = validated(lines, event_types=types, unknown_event_type="negative")
    assert [row["label"] for row in rows] == [1, -1, 0, -1, -1]
    assert not letters


def test_an_event_that_is_ahead_of_its_arrival_is_told() -> None:
    lines = [line(), line(timestamp=1_700_000_001), line(timestamp=1_700_000_000_001)]
    block = Block(BlockId("a", 0), Lines(lines, np.arange(3)), latest_ms=1_700_000_000_000)
    batch, letters = Validator(LogConfig()).validate(block)
    assert batch.rows.column("position").to_pylist() == [0]
    assert [letter.position for letter in letters.letters] == [1, 2]
    assert {letter.reason for letter in letters.letters} == {Reason.AHEAD_OF_ARRIVAL}
    assert letters.letters[0].detail == (
        "timestamp is 2023-11-14T22:13:21Z; the arrival of its file and pipeline.clock_tolerance_minutes allow "
        "2023-11-14T22:13:20Z"
    )


def test_without_an_arrival_only_the_calendar_ends_time() -> None:
    [row], [] = validated([line(timestamp=253_402_214_400_000)], timestamp_unit="ms")
    assert row["timestamp"] == 253_402_214_400_000
    [letter] = validated([line(timestamp=253_402_214_400_001)], timestamp_unit="ms")[1]
    assert letter.reason == Reason.TIMESTAMP_OUT_OF_RANGE


def test_a_weight_that_is_too_large_is_told_with_the_limit() -> None:
    rows, [letter] = validated([line(weight=100), line(weight=250.5)])
    assert [row["weight"] for row in rows] == [100.0]
    assert letter.detail == "weight is 250.5; pipeline.max_weight allows 100"
    assert validated([line(weight=250.5)], max_weight=1000)[0][0]["weight"] == 250.5


def test_latest_valid_time_can_be_set() -> None:
    rows, letters = validated([line(), line(timestamp=1_800_000_000)], max_time=datetime(2025, 1, 1, tzinfo=UTC))
    assert (len(rows), [letter.reason for letter in letters]) == (1, [Reason.TIMESTAMP_OUT_OF_RANGE])


def rows_validated(table: pa.Table, **settings: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    block = Block(BlockId("log.parquet", 5), TableRows(table, np.arange(len(table)) + 5))
    batch, letters = Validator(LogConfig(**settings)).validate(block)
    return batch.rows.to_pylist(), list(letters.letters)


# Letters of none of the texts that stand for no id.
@given(st.lists(st.integers(-(2**70), 2**70) | st.text("bcxé01", min_size=1, max_size=4), min_size=1, max_size=8))
def test_json_ids_may_be_integers_which_become_their_decimal_text(ids: list[int | str]) -> None:
    rows, letters = validated([line(user_id=one, item_id=one, event_id=one) for one in ids])
    assert not letters
    for name in ("user_id", "item_id", "event_id"):
        assert [row[name] for row in rows] == [str(one) for one in ids]


def test_a_line_without_a_field_says_what_it_has_and_which_setting_names_it() -> None:
    _, [letter] = validated([b'{"customer": "u", "sku": "i", "when": 1700000000}'])
    assert letter.detail == (
        "user_id is missing or null; the line has customer, sku, when: name the right one with pipeline.columns.user_id"
    )


def test_parquet_ids_may_be_integers_and_dictionaries() -> None:
    table = pa.table(
        {
            "user_id": pa.array([7, 8], pa.int32()),
            "item_id": pa.array(["a", "b"]).dictionary_encode(),
            "timestamp": pa.array([datetime(2023, 11, 14, 22, 13, 20), None], pa.timestamp("ns")),
        }
    )
    [row], [letter] = rows_validated(table)
    assert (row["user_id"], row["item_id"], row["timestamp"], row["position"]) == ("7", "a", 1_700_000_000_000, 5)
    assert (letter.reason, letter.position) == (Reason.MISSING_FIELD, 6)
    assert json.loads(letter.raw)["item_id"] == "b"


def test_parquet_row_faults() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    table = pa.table(
        {
            "user_id": pa.chunked_array([pa.array([None, "", "x" * 1_000_000, "u", "u", "u"]), broken]),
            "item_id": ["i"] * 7,
            "timestamp": [1_700_000_000.5] * 3 + [float("nan"), -1.0, 1e300, 1_700_000_000.5],
            "weight": [1.0] * 7,
        }
    )
    rows, letters = rows_validated(table)
    assert rows == []
    assert [letter.reason for letter in letters] == [
        Reason.MISSING_FIELD,
        Reason.EMPTY_ID,
        Reason.ID_TOO_LONG,
        Reason.UNPARSABLE_TIMESTAMP,
        Reason.TIMESTAMP_OUT_OF_RANGE,
        Reason.TIMESTAMP_OUT_OF_RANGE,
        Reason.NOT_UTF8,
    ]


@pytest.mark.parametrize(
    ("name", "values"), [("user_id", [1.5]), ("weight", [True]), ("timestamp", [[1]]), ("item_id", [True])]
)
def test_parquet_column_of_the_wrong_type_is_one_letter_that_names_it(name: str, values: list[Any]) -> None:
    rows, [letter] = rows_validated(pa.table({"user_id": ["u"], "item_id": ["i"], "timestamp": [1]} | {name: values}))
    assert (rows, letter.reason) == ([], Reason.WRONG_TYPE)
    assert f"column {name} is of type" in letter.detail
    assert "allowed are" in letter.detail


def test_parquet_without_a_required_column_is_one_letter() -> None:
    rows, [letter] = rows_validated(pa.table({"user_id": ["u"], "timestamp": [1]}))
    assert (rows, letter.reason, letter.position) == ([], Reason.MISSING_FIELD, 5)
    assert "item_id" in letter.detail


junk = st.one_of(
    st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"")),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists).map(
        lambda value: json.dumps({"user_id": value, "item_id": value, "timestamp": value, "weight": value}).encode()
    ),
    st.just(line()),
)


@given(st.lists(junk, max_size=8))
def test_every_line_is_a_row_or_a_letter_or_blank(lines: list[bytes]) -> None:
    rows, letters = validated(lines)
    places = [row["position"] for row in rows] + [letter.position for letter in letters]
    assert sorted(places) == [10 * number for number, raw in enumerate(lines) if raw.strip()]


def test_a_byte_order_mark_is_taken_off_the_first_line_only() -> None:
    mark = b"\xef\xbb\xbf"
    rows, letters = validated([mark + line(), line(), mark + line()])
    assert [row["position"] for row in rows] == [0, 10]
    assert [(letter.position, letter.reason) for letter in letters] == [(20, Reason.MALFORMED_JSON)]


NAMED = {"categorical": ["genre"], "dense": ["price"]}


def test_item_features_are_read_as_lists_and_numbers_and_may_be_absent() -> None:
    said = [{}, {"genre": "jazz", "price": 3}, {"genre": ["a", "b"], "price": 0.5}, {"genre": None, "price": None}]
    rows, letters = validated([line(**fields) for fields in said], item_features=NAMED)
    assert not letters
    assert [row["features"] for row in rows] == [
        {"genre": None, "price": None},
        {"genre": ["jazz"], "price": 3.0},
        {"genre": ["a", "b"], "price": 0.5},
        {"genre": None, "price": None},
    ]
    assert "features" not in validated([line(genre=17)])[0][0]


def test_user_features_are_read_alike_and_kept_apart() -> None:
    said = [{"genre": "jazz", "age": 3}, {"lives": ["a", "b"], "price": 1}, {}]
    users = {"categorical": ["lives"], "dense": ["age"]}
    rows, letters = validated([line(**fields) for fields in said], item_features=NAMED, user_features=users)
    assert not letters
    assert [(row["features"], row["user_features"]) for row in rows] == [
        ({"genre": ["jazz"], "price": None}, {"lives": None, "age": 3.0}),
        ({"genre": None, "price": 1.0}, {"lives": ["a", "b"], "age": None}),
        ({"genre": None, "price": None}, {"lives": None, "age": None}),
    ]
    assert "features" not in validated([line(**said[0])], user_features=users)[0][0]
    table = pa.table({"user_id": ["u"], "item_id": ["i"], "timestamp": [1_700_000_000], "lives": ["x"], "age": [7]})
    [row], letters = rows_validated(table, user_features=users)
    assert (row["user_features"], letters) == ({"lives": ["x"], "age": 7.0}, [])


@pytest.mark.parametrize("of", ["item_features", "user_features"])
@pytest.mark.parametrize(
    ("fields", "reason", "detail"),
    [
        ({"genre": 17}, Reason.WRONG_TYPE, "Expected `str | array | null`, got `int` - at `$.genre`"),
        ({"genre": ["a", 1]}, Reason.WRONG_TYPE, "Expected `str`, got `int` - at `$.genre[1]`"),
        ({"price": "3"}, Reason.WRONG_TYPE, "Expected `float | null`, got `str` - at `$.price`"),
        ({"price": True}, Reason.WRONG_TYPE, "Expected `float | null`, got `bool` - at `$.price`"),
        ({"price": 1e300}, Reason.NON_FINITE_FEATURE, "price is 1e+300; allowed are finite numbers (32 bits)"),
        ({"genre": ["a"] * 65}, Reason.FEATURE_TOO_LONG, "genre has 65 values, at most 64 are allowed"),
        ({"genre": "é" * 257}, Reason.FEATURE_TOO_LONG, "genre has a value of 514 bytes, at most 512 are allowed"),
    ],
)
def test_a_feature_that_cannot_be_used_is_told(fields: dict[str, Any], reason: Reason, detail: str, of: str) -> None:
    good = line(genre="a", price=1)
    rows, [letter] = validated([good, line(**fields), good], **{of: NAMED})
    assert [row["position"] for row in rows] == [0, 20]
    assert (letter.reason, letter.detail, letter.position) == (reason, detail, 10)


def test_item_features_of_parquet() -> None:
    broken = pa.array([b"\xff"]).view(pa.string())
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], pa.concat_arrays([pa.array(["a", None]), broken]))
    fields = {"user_id": ["u"] * 3, "item_id": ["i"] * 3, "timestamp": [1_700_000_000] * 3, "genre": lists}
    [row], letters = rows_validated(pa.table(fields), item_features=NAMED)
    assert row["features"] == {"genre": ["a"], "price": None}
    assert [(letter.position, letter.reason) for letter in letters] == [(6, Reason.WRONG_TYPE), (7, Reason.NOT_UTF8)]
    rows, [letter] = rows_validated(pa.table(fields | {"price": ["1", "2", "3"]}), item_features=NAMED)
    assert (rows, letter.reason) == ([], Reason.WRONG_TYPE)
    assert letter.detail == "column price is of type string; allowed are numbers (all 3 rows refused)"


def test_an_object_over_two_lines_shifts_no_position() -> None:
    whole = line(user_id="a")
    half = whole.index(b', "item')
    lines = [whole[: half + 1], whole[half + 1 :], line(user_id="b") + line(user_id="c"), line(user_id="d")]
    rows, letters = validated(lines)
    assert [(row["user_id"], row["position"]) for row in rows] == [("d", 30)]
    assert [(letter.position, letter.reason) for letter in letters] == [
        (0, Reason.MALFORMED_JSON),
        (10, Reason.MALFORMED_JSON),
        (20, Reason.MALFORMED_JSON),
    ]


def test_of_a_repeated_key_the_last_counts() -> None:
    [row], [] = validated([b'{"user_id":"a","user_id":"b","item_id":"i","timestamp":1700000000}'])
    assert row["user_id"] == "b"


def test_repeated_columns_are_one_letter_that_names_them() -> None:
    fields = [pa.array(["a"]), pa.array(["b"]), pa.array(["i"]), pa.array([1_700_000_000])]
    table = pa.Table.from_arrays(fields, ["user_id", "user_id", "item_id", "timestamp"])
    rows, [letter] = rows_validated(table)
    assert (rows, letter.reason) == ([], Reason.REPEATED_FIELD)
    assert letter.detail == "column user_id is in the file 2 times; one is allowed (all 1 rows refused)"


NESTED = [{"a": [1]}, [("k", "v")], [[1.5]], [["x"]], b"raw", 1.5, True]


@pytest.mark.parametrize("name", ["user_id", "timestamp", "weight", "event_type", "genre", "price"])
@pytest.mark.parametrize("value", NESTED, ids=repr)
def test_nested_garbage_in_any_column_does_not_raise(name: str, value: Any) -> None:
    kind = pa.map_(pa.string(), pa.string()) if value == [("k", "v")] else None
    fields = {"user_id": ["u", "v"], "item_id": ["i"] * 2, "timestamp": [1_700_000_000, None]}
    table = pa.table(fields | {name: pa.array([value, value], kind)})
    rows, letters = rows_validated(table, item_features=NAMED, event_types={"click": "positive"})
    assert rows == [] or name in ("genre", "weight", "price")
    assert Reason.UNREADABLE_BLOCK not in {letter.reason for letter in letters}


def test_text_that_is_no_utf8_does_not_raise_in_any_column() -> None:
    broken = pa.array([b"\xff", b"fine"]).view(pa.string())
    fields = {"user_id": ["u"] * 2, "item_id": ["i"] * 2, "timestamp": [1_700_000_000] * 2}
    for name in ("user_id", "event_type", "event_id", "timestamp"):
        _, letters = rows_validated(pa.table(fields | {name: broken}), event_types={"fine": "positive"})
        assert letters[0].reason == (Reason.UNPARSABLE_TIMESTAMP if name == "timestamp" else Reason.NOT_UTF8)
        encoded = pa.table(fields | {name: broken.dictionary_encode()})
        assert rows_validated(encoded, event_types={"fine": "positive"})[1][0].reason == letters[0].reason


def test_a_time_that_its_unit_can_hold_and_no_other_is_out_of_range() -> None:
    values = pa.array([2**62, 1_700_000_000], pa.timestamp("s"))
    table = pa.table({"user_id": ["u"] * 2, "item_id": ["i"] * 2, "timestamp": values})
    [row], [letter] = rows_validated(table)
    assert (row["timestamp"], letter.reason) == (1_700_000_000_000, Reason.TIMESTAMP_OUT_OF_RANGE)


def test_whatever_raises_is_a_letter_and_spares_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LineDecoder, content: Lines) -> Decoded:
        if any(b"poison" in raw for raw in content.lines):
            raise ZeroDivisionError("division by zero")
        return decode(self, content)

    decode = LineDecoder.decode
    monkeypatch.setattr(LineDecoder, "decode", fail)
    lines = [line(user_id="poison" if number in (3, 700) else f"u{number}") for number in range(1000)]
    rows, letters = validated(lines)
    assert sorted(row["position"] for row in rows) == [10 * row for row in range(1000) if row not in (3, 700)]
    assert [(letter.position, letter.reason) for letter in letters] == [
        (30, "unreadable_block"),
        (7000, "unreadable_block"),
    ]
    assert letters[0].detail == "ZeroDivisionError: division by zero (1 rows refused, positions 30 to 30)"
    assert "poison" in letters[0].raw


def test_a_block_of_which_everything_raises_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LineDecoder, content: Lines) -> Decoded:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(LineDecoder, "decode", fail)
    rows, letters = validated([line()] * 1000)
    assert rows == []
    assert len(letters) <= 65
    assert sum(int(letter.detail.split("(")[1].split()[0]) for letter in letters) == 1000


def test_every_row_has_an_event_time_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "_PIECE", 3)
    lines = [
        line(),
        b"",
        b"{broken",
        line(timestamp="soon"),
        line(timestamp=5),
        line(weight=-1),
        line(user_id=7.5),
        line(),
    ]
    times, valid = Validator(LogConfig()).event_times(Lines(lines, np.arange(8) * 10))
    assert valid.tolist() == [True, False, False, False, False, True, False, True]
    assert set(times[valid].tolist()) == {1_700_000_000_000}
    table = pa.table({"user_id": [1, None], "item_id": ["i"] * 2, "timestamp": [1_700_000_000, None]})
    times, valid = Validator(LogConfig()).event_times(TableRows(table, np.arange(2)))
    assert (times[0], valid.tolist()) == (1_700_000_000_000, [True, False])
    for nothing in (Lines([], np.arange(0)), TableRows(table.select(["item_id"])[:0], np.arange(0))):
        times, valid = Validator(LogConfig()).event_times(nothing)
        assert (len(times), len(valid)) == (0, 0)


def test_without_a_need_for_times_a_row_may_lack_one_and_it_is_null() -> None:
    lines = [line(timestamp=...), line(), line(timestamp=None), line(timestamp="soon")]
    block = Block(BlockId("log.jsonl", 0), Lines(lines, np.arange(4)))
    valid, letters = Validator(LogConfig(), needs_time=False).validate(block)
    assert valid.rows["timestamp"].to_pylist() == [None, 1_700_000_000_000, None]
    assert [letter.reason for letter in letters.letters] == [Reason.UNPARSABLE_TIMESTAMP]
    table = TableRows(pa.table({"user_id": ["u"], "item_id": ["i"]}), np.arange(1))
    valid, letters = Validator(LogConfig(), needs_time=False).validate(Block(BlockId("log.parquet", 0), table))
    assert (valid.rows["timestamp"].to_pylist(), letters.letters) == ([None], ())
