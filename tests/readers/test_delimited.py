import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.readers.files import Event, write_delimited
from weir.readers import Format, LogConfig, Partition, Reading, Reason, chunks_of, discover, read_chunk, read_log
from weir.readers.blocks import Header
from weir.readers.delimited import header_of, split_row, split_rows
from weir.readers.faults import Fault
from weir.readers.log_file import LogFile

HEADER = Header(("a", "b"), ",")
values = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=5)


def written(rows: list[list[str]], delimiter: str = ",") -> list[bytes]:
    lines = []
    for row in rows:
        text = io.StringIO()
        csv.writer(text, delimiter=delimiter, lineterminator="").writerow(row)
        lines.append(text.getvalue().encode())
    return lines


@given(st.lists(st.lists(values, min_size=2, max_size=2), max_size=6), st.sampled_from(",;\t|"))
def test_what_a_writer_has_written_is_read(rows: list[list[str]], delimiter: str) -> None:
    assert split_rows(written(rows, delimiter), Header(("a", "b"), delimiter)) == rows


@given(st.lists(st.text('ab,"\r\xe9', max_size=6).map(str.encode) | st.just(b"\xff,x"), max_size=6))
def test_a_line_means_the_same_whatever_stands_beside_it(lines: list[bytes]) -> None:
    assert split_rows(lines, HEADER) == [split_row(line, HEADER) for line in lines]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1", Reason.MALFORMED_ROW),
        (b"1,2,3", Reason.MALFORMED_ROW),
        (b'1,"2', Reason.MALFORMED_ROW),
        (b'1,"2"3', Reason.MALFORMED_ROW),
        (b"1,\xff", Reason.NOT_UTF8),
        (b"1," + b"x" * (8 << 20), Reason.LINE_TOO_LONG),
    ],
)
def test_what_is_wrong_with_a_line(line: bytes, reason: Reason) -> None:
    found = split_row(line, HEADER)
    assert isinstance(found, Fault)
    assert found.reason == reason


@pytest.mark.parametrize(
    ("key", "first", "expected"),
    [
        ("a.csv", b"user,item", Header(("user", "item"), ",")),
        ("a.csv", b"user; item\r", Header(("user", "item"), ";")),
        ("a.csv", b'\xef\xbb\xbf"user"\t"it,em"', Header(("user", "it,em"), "\t")),
        ("a.csv", b"user|item", Header(("user", "item"), "|")),
        ("a.tsv", b"us,er\tit,em", Header(("us,er", "it,em"), "\t")),
        ("a.csv", b"user", Header(("user",), ",")),
        ("a.csv", b"", Header((), ",")),
    ],
)
def test_headers(key: str, first: bytes, expected: Header) -> None:
    data = first + b"\n1,2\n"
    for kind, content in ((Format.DELIMITED, data), (Format.GZIP_DELIMITED, gzip.compress(data))):
        name = key + (".gz" if kind is Format.GZIP_DELIMITED else "")
        assert header_of(LogFile(io.BytesIO(content)), Partition(name, name, kind, len(content))) == expected


@given(st.integers(1, 200), st.integers(1, 12))
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_every_row_is_read_once_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, name: str, step: int, count: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    write_delimited(folder / name, [Event("u", f"i{number}", number) for number in range(count)])
    [partition] = discover(str(folder))
    chunks, _ = chunks_of(Reading(partition), step)
    found = [block.content for chunk in chunks for block in read_chunk(chunk, LogConfig(), 3, 100)]
    lines = [line for content in found if content is not None for line in content.lines]  # type: ignore[union-attr]
    assert [line.split(b"\t" if b"\t" in line else b",")[1] for line in lines] == [b"i%d" % one for one in range(count)]


def test_a_csv_is_a_log(tmp_path: Path) -> None:
    text = "customer;sku;bought;qty\nu1;i1;2024-01-01 10:00:00;2,5\nu2;i2;2024-01-01 11:00:00;\nu3;i3\n\n"
    text += 'u4;;1704110400;1\nu5;"i;5";2024-01-02;7'
    (tmp_path / "shop.csv").write_text(text)
    columns = {"user_id": "customer", "item_id": "sku", "timestamp": "bought", "weight": "qty"}
    config = LogConfig(columns=columns, time_zone="UTC")  # type: ignore[arg-type]
    [(valid, letters)] = read_log(discover(str(tmp_path)), config)
    rows = valid.rows.to_pylist()
    assert [(row["user_id"], row["item_id"], row["weight"]) for row in rows] == [("u2", "i2", 1.0), ("u5", "i;5", 7.0)]
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


def test_a_header_that_is_no_text_is_one_letter(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_bytes("user_id,item_id\n".encode("utf-16"))
    [(_, letters)] = read_log(discover(str(tmp_path)), LogConfig())
    assert [letter.reason for letter in letters.letters] == ["unreadable_block"]
