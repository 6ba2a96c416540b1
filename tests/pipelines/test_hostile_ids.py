"""Ids with quotes, backslashes, tabs and more, in rows of every format: none is left after `weir forget`."""

import base64
import csv
import html
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.pipelines import redacting, support
from weir.contracts import Store
from weir.log.v1.interaction_pb2 import Interaction
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.maintenance.erased_files import Forgotten, named_in_letter
from weir.pipelines.maintenance.erasure import forget_users
from weir.pipelines.maintenance.erasure_check import sightings
from weir.readers import DeadLetter, Fault, Reason

TEXT = st.characters(exclude_categories=["Cs"])
IDS = st.text(TEXT | st.sampled_from("\"\\'\t\n\r,;%&+-_ \0\x01\u2028ë7u"), min_size=1, max_size=12)
PLAIN = st.from_regex(r"[a-z]{4,8}-[0-9]{3,6}", fullmatch=True)


def units(text: str) -> str:
    """Every character as an escape of JSON."""
    data = text.encode("utf-16-be")
    return "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack(">H", data))


def in_csv(*values: str, delimiter: str = ",") -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="").writerow(values)
    return file.getvalue()


def in_avro(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 64
    return bytes([2 * len(data)]) + data + b"\x0eanother"


def object_of(one: str, **changes: object) -> str:
    return json.dumps({"user_id": one, "item_id": ""} | changes, ensure_ascii=False)


FORMS: dict[str, Callable[[str], bytes]] = {
    "json": lambda one: object_of(one).encode(),
    "json, ascii": lambda one: json.dumps({"user_id": one}).encode(),
    "json, escapes": lambda one: f'{{"user_id":"{units(one)}"}}'.encode(),
    "json, slashes": lambda one: object_of(one).replace("/", "\\/").encode(),
    "json in json": lambda one: json.dumps({"payload": json.dumps({"user_id": one})}).encode(),
    "json in csv": lambda one: in_csv("x", object_of(one)).encode(),
    "csv": lambda one: in_csv(one, "item").encode(),
    "csv, torn": lambda one: in_csv(one, "item").encode()[:-1],
    "tsv": lambda one: in_csv("item", one, delimiter="\t").encode(),
    "percent": lambda one: f"GET /click?user={quote(one, safe='')}&item=7".encode(),
    "percent, plus": lambda one: f"user={quote(one, safe=' ').replace(' ', '+')}".encode(),
    "references": lambda one: f"<user>{html.escape(one)}</user>".encode(),
    "base64": lambda one: json.dumps({"user": base64.b64encode(one.encode()).decode()}).encode(),
    "base64, url": lambda one: b"user=" + base64.urlsafe_b64encode(one.encode()).rstrip(b"=") + b";",
    "utf-16-le": lambda one: b"\0" + object_of(one).encode("utf-16-le"),
    "utf-16-be": lambda one: object_of(one).encode("utf-16-be"),
    "utf-32": lambda one: object_of(one).encode("utf-32"),
    "protobuf": lambda one: b"\xff" + Interaction(user_id=one, item_id="i").SerializeToString(),
    "protobuf, text": lambda one: Interaction(user_id=one, item_id="a").SerializeToString(),
    "avro": lambda one: b"\0\0\0\0\x01" + in_avro(one),
}
"""A row as it came, by format; none of them is checked by the code under test, and all name one user."""


def letter_of(row: bytes, detail: str = "refused") -> DeadLetter:
    return DeadLetter.of("p", 0, Fault(Reason.MALFORMED_JSON, detail), row)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40)
@given(one=IDS, padding=st.sampled_from([0, 2000]))
def test_a_letter_names_its_user_in_every_format_whole_or_cut(form: str, one: str, padding: int) -> None:
    letter = letter_of(FORMS[form](one) + b" " + b"x" * padding)
    assert one in named_in_letter(letter, Forgotten.of(["another", one]))


@given(one=IDS)
def test_what_was_wrong_with_a_row_names_its_user(one: str) -> None:
    assert one in named_in_letter(letter_of(b"", f"user_id is {one!r}, blank"), Forgotten.of([one]))


@pytest.mark.parametrize(
    ("one", "charset"),
    [("zoë-7", "cp1252"), ("жук-7", "cp1251"), ("жук-7", "koi8-r"), ("用户-7", "gb18030"), ("ユーザ", "shift_jis")],
)
def test_rows_in_another_charset_name_their_user(one: str, charset: str) -> None:
    letter = letter_of(f"{one};item".encode(charset))
    assert letter.encoding == "base64"
    assert one in named_in_letter(letter, Forgotten.of([one]))


@pytest.mark.parametrize("form", ["json", "json, ascii", "json, escapes", "csv", "tsv", "percent"])
@settings(max_examples=25)
@given(one=st.text(TEXT, min_size=8, max_size=12), data=st.data())
def test_a_row_that_was_cut_within_an_id_counts_as_naming_it(form: str, one: str, data: st.DataObject) -> None:
    # The shortest row that holds these characters, with some of the spelling of the next ones.
    kept = data.draw(st.integers(4, len(one)))
    encode = FORMS[form]
    same = [size for size in range(len(encode(one))) if encode(one)[:size] == encode(one[:kept] + "~" * 30)[:size]]
    row = encode(one)[: max(same) + data.draw(st.integers(0, 3))]
    padding = b" " * (1024 - len(row))
    letter = DeadLetter.of("p", 0, Fault(Reason.LINE_TOO_LONG, "long"), padding + row + b"\xff" * 10)
    assert one in named_in_letter(letter, Forgotten.of([one, "another"]))


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=10)
@given(one=PLAIN, other=PLAIN)
def test_another_user_is_not_named(form: str, one: str, other: str) -> None:
    assume(one not in other and other not in one)
    assert named_in_letter(letter_of(FORMS[form](one)), Forgotten.of([other])) == set()


HOSTILE = [
    'quo"te', "back\\slash", "tab\tid", "line\nfeed", "it's", "zoë ümlaut", "😀x", "com,ma", 'dou""ble', "per%41cent",
    "dGFiCg==", "sep\u2028id", "one\x01two", "\\u0041bc", " lead", "&amp;id", "semi;colon", "a/b/c",
]  # fmt: skip


def write_logs(folder: Path) -> None:
    """A valid event and refused rows in each format for each user, beside rows of a user who stays."""
    good = [{"user_id": one, "item_id": f"item-{n}", "timestamp": support.ORIGIN + n, "event_type": "click"}
            for n, one in enumerate([*HOSTILE, "stays"])]  # fmt: skip
    bad = [{**event, "timestamp": "never"} for event in good]
    text = [json.dumps(event, ensure_ascii=bool(n % 2)) + "\n" for n, event in enumerate([*good, *bad])]
    torn = [f'{{"user_id": "{units(one)}", "item_id": "{"x" * 1100}\n' for one in [*HOSTILE, "stays"]]
    support.write_lines(folder / "log/a.jsonl", [*text, *torn])
    rows = [in_csv(*good[0]), *(in_csv(*map(str, event.values())) for event in bad)]
    support.write_lines(folder / "log/b.csv", [row + "\n" for row in rows])
    table = pa.table({name: [str(event[name]) for event in bad] for name in bad[0]})
    pq.write_table(table, folder / "log/c.parquet")


def test_no_file_of_a_store_holds_hostile_ids_after_they_are_forgotten(tmp_path: Path) -> None:
    write_logs(tmp_path)
    store, config = Store(str(tmp_path / "store")), support.config(tmp_path)
    ingest(store, config, registry=CollectorRegistry())
    before = support.dead_letters(store)
    assert len(before) == 4 * (len(HOSTILE) + 1)
    users = redacting.forgotten(tmp_path, HOSTILE)
    seen = {one.name.partition("/")[0] for one in sightings(store, users)}
    assert seen == {"windows", "histories", "dead-letters"}
    report = forget_users(store, config, users)
    assert set(report.held) == set(HOSTILE)
    assert redacting.erase(tmp_path)
    assert sightings(store, users) == []
    left = redacting.letters_of(store)
    assert len(left) == len(before)
    kept = [letter for letter in left if letter.raw]
    assert len(kept) == 4
    assert all("stays" in letter.raw or units("stays") in letter.raw for letter in kept)
    # Every spelling of an id that a row can have, as bytes, in all files.
    spelled = {
        spelling.encode()
        for one in HOSTILE
        for spelling in (
            one,
            json.dumps(one)[1:-1],
            json.dumps(one, ensure_ascii=False)[1:-1],
            units(one),
            repr(one)[1:-1],
        )
    }
    spelled |= {json.dumps(one.decode())[1:-1].encode() for one in spelled}
    for name in store.find():
        data = store.read(name)
        assert [one for one in spelled if one in data] == [], name
