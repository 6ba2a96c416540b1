""""""

import csv
import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers.files import ORIGIN, Event, write_delimited
from weir.readers import Format, LogConfig, Partition, Reading, Reason, UnreadableError, chunks_of, discover, read_log
from weir.readers import delimited as delimited_module
from weir.readers import lines as lines_module
from weir.readers import reading as listing_module
from weir.readers import reading as reading_module
from weir.readers.blocks import Fault, Header, Lines
from weir.readers.delimited import header_of, read_columns, rows_of, split_row
from weir.readers.reading import read_chunk
from weir.readers.row_ends import QuoteTracker
from weir.readers.sources import LogFile

HEADER = Header(("a", "b"), ",")
anything = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=5)
values = anything | st.text('a," \t\n\r', max_size=6)
marks = st.sampled_from([b'"', b'"', b",", b"\n", b"a", b" ", b"\t", b"\r", b"\r\n", b"\xff", "é".encode()])
damaged = st.lists(marks, max_size=40).map(b"".join)


def written(rows: list[list[str]], delimiter: str = ",", **dialect: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, **dialect).writerows(rows)
    return text.getvalue().encode()


@contextmanager
def small_pieces(size: int) -> Iterator[None]:
    """Read files in pieces of so many bytes, so that a small file takes the ways of a large one."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (listing_module, "_NEAR"),
            (listing_module, "_FAR"),
            (lines_module, "_PIECE"),
            (delimited_module, "_PIECE"),
        ):
            patch.setattr(module, name, size)
        yield


def stored(data: bytes, name: str = "a.csv") -> Partition:
    fs = fsspec.filesystem("memory")
    fs.pipe(f"/{name}", data)
    kind = Format.GZIP_DELIMITED if name.endswith(".gz") else Format.DELIMITED
    return Partition(name, f"/{name}", kind, len(data), fs)


def rows_from(partition: Partition, step: int, **reading: Any) -> tuple[list[tuple[int, bytes]], int]:
    """Return the rows of a file with their positions, and where reading stops."""
    chunks, stop = chunks_of(Reading(partition, **reading), step)
    found = []
    for chunk in chunks:
        for block in read_chunk(chunk, LogConfig(), 3, 100):
            assert isinstance(block.content, Lines)
            found += zip(block.content.positions.tolist(), block.content.lines, strict=True)
    return found, stop


def expected_rows(data: bytes) -> list[tuple[int, bytes]]:
    """Return the rows below the header with their positions, cut where reading sign by sign finds their ends."""
    ends = [at for at, outside in breaks_of(data, b",")[0] if outside]
    bounds = zip([0, *(at + 1 for at in ends)], [*ends, len(data)], strict=True)
    return [(start, data[start:end]) for start, end in bounds if start < len(data)][1:]


@given(
    st.lists(st.lists(values, min_size=2, max_size=2), max_size=6),
    st.sampled_from(",;\t|"),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", " ", "  "]),
)
def test_what_a_writer_has_quoted_is_read(rows: list[list[str]], delimiter: str, end: str, blank: str) -> None:
    quoted = [[f'{blank}"{value.replace(chr(34), 2 * chr(34))}"{blank}' for value in row] for row in rows]
    text = end.join(delimiter.join(row) for row in [["a", "b"], *quoted]) + end
    found = rows_of(text.encode(), is_tsv=delimiter == "\t")
    if delimiter in ";|" and not rows:
        return
    header = Header(("a", "b"), delimiter)
    assert found.header == header
    assert [split_row(line, header) for line in found.lines] == rows
    table, faults = read_columns(found.lines, header, {"a", "b"})
    assert not faults
    assert table.to_pylist() == [{"a": a or None, "b": b or None} for a, b in rows]


@given(st.lists(st.lists(values, min_size=2, max_size=2), max_size=6), st.sampled_from(",;\t|"))
def test_what_a_writer_quotes_where_it_must_is_read_without_other_blanks(rows: list[list[str]], delimiter: str) -> None:
    found = rows_of(written([["a", "b"], *rows], delimiter), is_tsv=delimiter == "\t")
    header = Header(("a", "b"), delimiter)
    for line, row in zip(found.lines, rows, strict=True):
        # What must be quoted keeps its blanks; those of tabs depend on what separates the values.
        needs = [any(sign in value for sign in f'{delimiter}"\r\n') for value in row]
        assert split_row(line, header) == [
            value if quoted else value.strip(" \t".replace(delimiter, ""))
            for value, quoted in zip(row, needs, strict=True)
        ]


# A row has no line break outside quotes; with few quotes more of them are read at once.
some_rows = st.lists(st.lists(marks, max_size=12).map(b"".join), max_size=6)
some_rows |= st.lists(st.lists(marks, max_size=12).map(lambda row: b"".join(row).replace(b'"', b"")), max_size=6)
some_rows = some_rows.map(lambda rows: [row if b'"' in row else row.replace(b"\n", b"") for row in rows])


@settings(max_examples=600)
@given(some_rows, st.sampled_from(",\t"))
def test_a_row_means_the_same_whatever_stands_beside_it(lines: list[bytes], delimiter: str) -> None:
    header = Header(("a", "b"), delimiter)
    table, faults = read_columns(lines, header, {"a"})
    for number, line in enumerate(lines):
        row = split_row(line, header, {"a"})
        assert faults.get(number) == (row if isinstance(row, Fault) else None)
        assert table["a"][number].as_py() == (None if isinstance(row, Fault) else row[0] or None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1", Reason.MALFORMED_ROW),
        (b"1,2,3", Reason.MALFORMED_ROW),
        (b'1,"2', Reason.MALFORMED_ROW),
        (b'1,"2"3', Reason.MALFORMED_ROW),
        (b"1\r2,3", Reason.MALFORMED_ROW),
        (b"1,\xff", Reason.NOT_UTF8),
        (b"1," + b"x" * (8 << 20), Reason.LINE_TOO_LONG),
    ],
)
def test_what_is_wrong_with_a_row(line: bytes, reason: Reason) -> None:
    found = split_row(line, HEADER, ["b"])
    assert isinstance(found, Fault)
    assert found.reason == reason


def test_columns_that_are_not_read_may_hold_anything() -> None:
    long = b"x" * 1_000_000
    lines = [b'1,"\xff"', b"2," + long, b'3,"4\n5"']
    table, faults = read_columns(lines, HEADER, {"a"})
    assert (table.to_pylist(), faults) == ([{"a": "1"}, {"a": "2"}, {"a": "3"}], {})
    assert split_row(lines[0], HEADER) == ["1", "\\xff"]


@pytest.mark.parametrize(
    ("key", "first", "expected"),
    [
        ("a.csv", b"user,item", Header(("user", "item"), ",")),
        ("a.csv", b"user; item\r", Header(("user", "item"), ";")),
        ("a.csv", b'\xef\xbb\xbf"user"\t"it,em"', Header(("user", "it,em"), "\t")),
        ("a.csv", b'\xef\xbb\xbf"us\ner" , "item " ,x', Header(("us\ner", "item ", "x"), ",")),
        ("a.csv", b"user|item", Header(("user", "item"), "|")),
        ("a.csv", b'user,size (5"),x', Header(("user", 'size (5")', "x"), ",")),
        ("a.tsv", b"us,er\tit,em", Header(("us,er", "it,em"), "\t")),
        ("A.TSV", b"us,er\tit,em", Header(("us,er", "it,em"), "\t")),
        ("a.csv", b"user", Header(("user",), ",")),
        ("a.csv", b"", Header((), ",")),
    ],
)
def test_headers(key: str, first: bytes, expected: Header) -> None:
    data = first + b"\n1,2\n"
    for kind, content in ((Format.DELIMITED, data), (Format.GZIP_DELIMITED, gzip.compress(data))):
        name = key + (".gz" if kind is Format.GZIP_DELIMITED else "")
        found = header_of(LogFile(io.BytesIO(content)), Partition(name, name, kind, len(content)))
        assert found == expected


@settings(max_examples=400)
@given(damaged, st.integers(1, 40), st.integers(1, 20))
def test_every_row_is_read_once_in_pieces_of_any_size(body: bytes, step: int, piece: int) -> None:
    data = b"user_id,item_id\n" + body
    expected = expected_rows(data)
    with small_pieces(piece):
        assert rows_from(stored(data), step)[0] == expected
        for begin, _ in expected:
            assert rows_from(stored(data), step, start=begin)[0] == [row for row in expected if row[0] >= begin]


@given(damaged, st.integers(0, 30), st.integers(1, 20))
def test_rows_of_a_gzip_file_have_the_numbers_of_their_lines(body: bytes, start: int, piece: int) -> None:
    data = b"user_id,item_id\n" + body
    numbered = [(data[:at].count(b"\n"), row) for at, row in expected_rows(data)]
    with small_pieces(piece):
        found, _ = rows_from(stored(gzip.compress(data), "a.csv.gz"), 1, start=start)
    assert found == [row for row in numbered if row[0] >= start]


@settings(max_examples=400)
@given(damaged, st.lists(st.integers(0, 60), min_size=1, max_size=4).map(sorted), st.integers(1, 20))
def test_a_file_that_grows_is_read_as_the_whole_one(body: bytes, sizes: list[int], piece: int) -> None:
    data = b'user_id,"item\nid"\n' + body
    whole = [one for one in expected_rows(data) if one[0] + len(one[1]) < len(data)]
    found, start = [], 0
    with small_pieces(piece):
        for size in [*sizes, len(data)]:
            partition = stored(data[: min(size, len(data))])
            rows, start = rows_from(partition, 7, start=start, only_whole_lines=True)
            found += rows
    assert found == whole


def test_a_row_whose_quotes_are_open_at_the_end_waits(tmp_path: Path) -> None:
    data = b'user_id,item_id,timestamp,comment\nu1,i1,1700000000,"a\nu2,i2,1700000000,x\n'
    partition = stored(data)
    following, stop = chunks_of(Reading(partition, only_whole_lines=True), 100)
    assert ([(one.start, one.stop) for one in following], stop) == ([(0, 34)], 34)
    bounded, stop = chunks_of(Reading(partition), 100)
    assert ([(one.start, one.stop) for one in bounded], stop) == ([(0, 34), (34, len(data))], 34)
    [(valid, _), (_, letters)] = read_log([partition], LogConfig())
    assert not len(valid.rows)
    assert [(one.reason, one.position, one.size) for one in letters.letters] == [("malformed_row", 34, len(data) - 34)]


@settings(max_examples=300)
@given(
    st.lists(st.text('x",\n \r', max_size=12) | st.just("\nmallory,evil,1700000000,x\n"), min_size=1, max_size=8),
    st.integers(1, 60),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["a.csv", "a.csv.gz"]),
)
def test_whoever_writes_comments_writes_no_events(comments: list[str], step: int, quoting: int, name: str) -> None:
    rows: list[list[Any]] = [[f"u{number}", "i", ORIGIN + number, said] for number, said in enumerate(comments)]
    data = written([["user_id", "item_id", "timestamp", "comment"], *rows], quoting=quoting)
    partition = stored(gzip.compress(data) if name.endswith(".gz") else data, name)
    with small_pieces(16), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading_module, "_BLOCK_BYTES", step)
        found = list(read_log([partition], LogConfig()))
    users = [user for valid, _ in found for user in valid.rows["user_id"].to_pylist()]
    # A writer quotes no carriage return that ends a value by itself.
    assert users == [f"u{number}" for number in range(len(comments))]
    assert not [letter for _, letters in found for letter in letters.letters]


def test_damage_ends_where_its_quotes_close() -> None:
    rows = ["u1,i1,1700000000,a", 'u2,i2,1700000000,"b', "u3,i3,1700000000,c", 'u4,i4,1700000000,"d"']
    data = "\n".join(["user_id,item_id,timestamp,comment", *rows, "u5,i5,1700000000,e", ""])
    [(valid, letters)] = read_log([stored(data.encode())], LogConfig())
    assert valid.rows["user_id"].to_pylist() == ["u1", "u5"]
    [letter] = letters.letters
    assert (letter.reason, letter.raw) == ("malformed_row", "\n".join(rows[1:]))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_values_are_read_up_to_the_limit_of_a_line(name: str) -> None:
    rows = [f"u{size},i,1700000000,{'p' * size}\n" for size in (131_073, (8 << 20) - 40, 8 << 20)]
    data = "".join(["user_id,item_id,timestamp,payload\n", *rows, "last,i,1700000000,\n"]).encode()
    partition = stored(gzip.compress(data, 1) if name.endswith(".gz") else data, name)
    found = list(read_log([partition], LogConfig()))
    users = [user for valid, _ in found for user in valid.rows["user_id"].to_pylist()]
    assert users == ["u131073", f"u{(8 << 20) - 40}", "last"]
    assert [letter.reason for _, letters in found for letter in letters.letters] == ["line_too_long"]


def test_a_csv_is_a_log(tmp_path: Path) -> None:
    text = "customer;sku;bought;qty\nu1;i1;2024-01-01 10:00:00;2,5\nu2;i2;2024-01-01 11:00:00;\nu3;i3\n\n"
    text += 'u4;;1704110400;1\nu5;"i;5";2024-01-02;7\n u6 ; "i6" ; 2024-01-03 10:00:00 ; 2 '
    (tmp_path / "shop.csv").write_text(text)
    columns = {"user_id": "customer", "item_id": "sku", "timestamp": "bought", "weight": "qty"}
    config = LogConfig(columns=columns, time_zone="UTC")  # type: ignore[arg-type]
    [(valid, letters)] = read_log(discover(str(tmp_path)), config)
    rows = valid.rows.to_pylist()
    assert [(row["user_id"], row["item_id"], row["weight"]) for row in rows] == [
        ("u2", "i2", 1.0),
        ("u5", "i;5", 7.0),
        ("u6", "i6", 2.0),
    ]
    assert [(one.reason, text.encode().index(one.raw.encode()) == one.position) for one in letters.letters] == [
        ("wrong_type", True),
        ("malformed_row", True),
        ("missing_field", True),
    ]
    assert "qty is '2,5'" in letters.letters[0].detail


def test_a_header_without_the_columns_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("customer,sku\n" + "1,2\n" * 5)
    [(valid, letters)] = read_log(discover(str(tmp_path)), LogConfig())
    assert not len(valid.rows)
    [letter] = letters.letters
    assert letter.detail == (
        "column user_id is missing; the file has customer, sku: name the right one with pipeline.columns.user_id "
        "(all 5 rows refused)"
    )


@pytest.mark.parametrize(
    "data",
    [
        "user_id,item_id\n".encode("utf-16"),
        b'user_id,"item_id\n1,2\n',
        b"user_id,item_id\r1,2\r3,4\r",
        b"user_id,item_id,timestamp" + b"," * (1 << 16) + b"\n",
    ],
    ids=["another encoding", "an open quote", "lone carriage returns", "columns without end"],
)
def test_a_header_that_is_none_is_one_letter(data: bytes) -> None:
    [(_, letters)] = read_log([stored(data)], LogConfig())
    assert [letter.reason for letter in letters.letters] == ["unreadable_file"]
    with pytest.raises(UnreadableError):
        chunks_of(Reading(stored(data)), 10)


@given(st.integers(1, 200), st.integers(1, 12))
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_files_of_a_writer_are_read_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, name: str, step: int, count: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    write_delimited(folder / name, [Event("u", f"i{number}", number) for number in range(count)])
    [partition] = discover(str(folder))
    lines = [line for _, line in rows_from(partition, step)[0]]
    assert [line.split(b"\t" if b"\t" in line else b",")[1] for line in lines] == [b"i%d" % one for one in range(count)]


delimiters = st.sampled_from([b",", b"\t", b";"])
signs = st.sampled_from([b'"', b'"', b'"', b",", b"\t", b"\n", b"\n", b"a", b" ", b"\r", "é".encode()])
texts = st.lists(signs, max_size=30).map(b"".join)


def breaks_of(text: bytes, delimiter: bytes) -> tuple[list[tuple[int, bool]], bool]:
    """Return the line breaks of a text, whether each is outside quotes, and what is open at the end: sign by sign."""
    found, at, is_open, may_open = [], 0, False, True
    while at < len(text):
        sign = text[at : at + 1]
        if sign == b"\n":
            found.append((at, not is_open))
        if is_open and text[at : at + 2] == b'""':
            at += 1
        elif sign == b'"':
            is_open = may_open and not is_open
            may_open = False
        elif not is_open and (sign == delimiter or sign in b"\r\n"):
            may_open = True
        elif sign not in b" \t" or sign == delimiter:
            may_open = False
        at += 1
    return found, is_open


def followed(quotes: QuoteTracker, text: bytes, sizes: list[int]) -> list[tuple[int, bool]]:
    found, at = [], 0
    for size in [*sizes, len(text)]:
        places, outside = quotes.breaks(text[at : at + size])
        found += zip((places + at).tolist(), outside.tolist(), strict=True)
        at += size
    return found


@settings(max_examples=1000)
@given(texts, delimiters, st.lists(st.integers(1, 6), max_size=8))
def test_breaks_lie_where_reading_sign_by_sign_finds_them(text: bytes, delimiter: bytes, sizes: list[int]) -> None:
    quotes = QuoteTracker(delimiter.decode())
    assert (followed(quotes, text, sizes), quotes.is_open) == breaks_of(text, delimiter)


@given(texts, texts, delimiters, st.lists(st.integers(1, 6), max_size=8))
def test_a_piece_that_is_skipped_counts(before: bytes, text: bytes, delimiter: bytes, sizes: list[int]) -> None:
    quotes = QuoteTracker(delimiter.decode())
    at = 0
    for size in [*sizes, len(before)]:
        quotes.skip(before[at : at + size])
        at += size
    found = [(at + len(before), outside) for at, outside in followed(quotes, text, [])]
    whole, is_open = breaks_of(before + text, delimiter)
    assert (found, quotes.is_open) == ([one for one in whole if one[0] >= len(before)], is_open)


@settings(max_examples=1000)
@given(texts, st.integers(0, 30), delimiters)
def test_quotes_can_be_followed_from_a_place_in_the_middle(text: bytes, start: int, delimiter: bytes) -> None:
    found = QuoteTracker(delimiter.decode()).behind(text[start:])
    if found is not None:
        place, quotes = start + found[0], found[1]
        later = [(place + at, outside) for at, outside in followed(quotes, text[place:], [])]
        assert later == [one for one in breaks_of(text, delimiter)[0] if one[0] >= place]


def test_a_closing_quote_is_such_a_place_and_an_opening_one_is_none() -> None:
    assert QuoteTracker(",").behind(b'x\n"a",1\n"b",2\n3') is not None
    assert QuoteTracker(",").behind(b'x\n"a\n') is None
    assert QuoteTracker(",").behind(b"x\n1,2\n") is None


def test_a_byte_order_mark_stands_before_the_first_value() -> None:
    places, outside = QuoteTracker(",").breaks(b'\xef\xbb\xbf"a\nb",c\n')
    assert (places.tolist(), outside.tolist()) == ([5, 10], [False, True])
