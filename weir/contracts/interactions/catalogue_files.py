"""Readers of catalogue files: Parquet, JSON Lines or CSV, the latter two also gzipped.

Arrow parses the files column by column. JSON Lines and CSV that Arrow cannot read as our rules require are parsed again
row by row, so that only the faulty rows are lost.
"""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from weir.contracts.base import columns
from weir.contracts.base.errors import UserError
from weir.contracts.interactions import arrow_columns
from weir.contracts.interactions.catalogue import CATALOGUE_SCHEMA, Catalogue
from weir.contracts.interactions.csv_rows import BLANKS, delimiter_of, rows_of_text
from weir.contracts.interactions.features import (
    CATEGORICAL_TYPE,
    DENSE_TYPE,
    MAX_VALUES,
    NO_FEATURES,
    FeatureNames,
    lists_of_cells,
    values_of,
)
from weir.contracts.interactions.interaction import MAX_ID_BYTES, MISSING_IDS, MissingIds
from weir.contracts.interactions.times import milliseconds

__all__ = ["CatalogueError", "decode_catalogue"]

Bool = npt.NDArray[np.bool_]

_Wrong: TypeAlias = tuple[Bool, str, pa.Array | None]
"""A mask of bad rows, the problem, and the values to quote in it, if any."""

_TIMES: Final = (columns.AVAILABLE_FROM, columns.AVAILABLE_UNTIL)
_TEXTS: Final = {columns.ITEM_ID: pa.string(), **dict.fromkeys(_TIMES, pa.string())}


class CatalogueError(UserError):
    """A file that is no valid catalogue; the message names it and says why."""


def decode_catalogue(
    url: str, data: bytes, features: FeatureNames = NO_FEATURES, missing_ids: Sequence[str] = MISSING_IDS
) -> Catalogue:
    """Return the catalogue of a file, whose format follows from its name; `features` names its feature columns.

    `missing_ids` are texts that mean a missing id (`weir.contracts.interactions.interaction`). Rows without a usable
    item id, or with tags, times or features of another type, are left out and counted. Raises `CatalogueError` if no
    row can be used.
    """
    name = url.lower().partition("?")[0]
    if name.endswith(".gz"):
        name, data = name.removesuffix(".gz"), _unzipped(url, data)
    read = next((read for ending, read in _READERS.items() if name.endswith(ending)), None)
    if read is None:
        raise CatalogueError(f"{url}: a catalogue ends in {', '.join(_READERS)}, or one of the last four and .gz")
    if not data:
        raise CatalogueError(f"{url}: is empty")
    try:
        rows, problems = read(data, features)
        found = _checked(rows, problems, features, MissingIds(missing_ids))
    except (pa.ArrowException, UnicodeDecodeError, TypeError) as error:
        raise CatalogueError(f"{url}: {' '.join(str(error).split())}") from None
    if found.refused and not len(found):
        raise CatalogueError(f"{url}: none of its {found.refused} rows can be used: {found.problem}")
    return found


def _unzipped(url: str, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise CatalogueError(f"{url}: {error}") from None


def _read_parquet(data: bytes, features: FeatureNames) -> tuple[pa.Table, list[str]]:
    file = pq.ParquetFile(io.BytesIO(data), arrow_extensions_enabled=True)
    wanted = [*CATALOGUE_SCHEMA.names, *features.all]
    return file.read(columns=[name for name in wanted if name in file.schema_arrow.names]), []


def _read_csv(data: bytes, features: FeatureNames) -> tuple[pa.Table, list[str]]:
    wanted = [*CATALOGUE_SCHEMA.names, *features.all]
    text = data.removeprefix(codecs.BOM_UTF8)
    first = text.lstrip(b"\r\n").partition(b"\n")[0].decode(errors="replace")
    delimiter = delimiter_of(first)
    # Arrow keeps blanks around a value, and takes a quote after them for a character.
    table, problems = _read_plain_csv(text, delimiter, wanted)
    if problems or _has_blanks(first.rstrip("\r").split(delimiter)) or any(map(_has_blanks, table.columns)):
        table, problems = _read_rows(text.decode(errors="surrogateescape"), delimiter, wanted)
    for name in features.categorical:
        lists = lists_of_cells(table[name].combine_chunks())
        table = table.set_column(table.column_names.index(name), name, lists)
    return table, problems


def _has_blanks(values: list[str] | pa.ChunkedArray) -> bool:
    """Return whether a text starts or ends with a blank."""
    texts = pa.chunked_array([values], pa.string()) if isinstance(values, list) else values
    return bool(pc.any(pc.not_equal(pc.ascii_trim(texts, BLANKS), texts)).as_py())


def _read_plain_csv(data: bytes, delimiter: str, wanted: list[str]) -> tuple[pa.Table, list[str]]:
    """Return the `wanted` columns of a CSV file as Arrow reads them, and the problems of the rows that Arrow skips."""
    problems: list[str] = []

    def skip(row: Any) -> str:
        problems.append(f"a row has {row.actual_columns} columns, not {row.expected_columns}")
        return "skip"

    table = pyarrow.csv.read_csv(
        io.BytesIO(data),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.string()),
            include_columns=wanted,
            include_missing_columns=True,
            strings_can_be_null=True,
            null_values=[""],
        ),
    )
    return table, problems


def _read_rows(text: str, delimiter: str, wanted: list[str]) -> tuple[pa.Table, list[str]]:
    """Return columns parsed row by row (`weir.contracts.interactions.csv_rows`), and the problems of skipped rows."""
    problems: list[str] = []
    cells: dict[str, list[str | None]] = {name: [] for name in wanted}
    rows = rows_of_text(text, delimiter)
    names, problem = next(rows, ([], ""))
    if problem:
        raise TypeError(f"the header is no row: {problem}")
    places = {name: names.index(name) for name in wanted if name in names}
    for values, fault in rows:
        wrong = fault or _fault_of(values, names, places)
        if wrong:
            problems.append(wrong)
            continue
        for name, column in cells.items():
            column.append(values[places[name]] or None if name in places else None)
    return pa.table({name: pa.array(column, pa.string()) for name, column in cells.items()}), problems


def _fault_of(values: list[str], names: list[str], places: Mapping[str, int]) -> str:
    """Return the fault of a row, "" for a valid row; bytes that are not UTF-8 are surrogates in `values`."""
    if len(values) != len(names):
        return f"a row has {len(values)} columns, not {len(names)}"
    texts = ((name, values[place]) for name, place in places.items())
    broken = (name for name, text in texts if not text.isascii() and any("\udc80" <= sign <= "\udcff" for sign in text))
    return next((f"{name} is not UTF-8" for name in broken), "")


def _read_lines(data: bytes, features: FeatureNames) -> tuple[pa.Table, list[str]]:
    schema = pa.schema({**_TEXTS, columns.TAGS: CATALOGUE_SCHEMA.field(columns.TAGS).type})
    # A file usually has either strings or lists of them: go by its first line.
    first = data.lstrip().partition(b"\n")[0]
    for name in features.categorical:
        schema = schema.append(pa.field(name, CATEGORICAL_TYPE if _has_list(first, name) else pa.string()))
    for name in features.dense:
        schema = schema.append(pa.field(name, DENSE_TYPE))
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        data.decode()  # Arrow checks only the requested columns
        table = pyarrow.json.read_json(io.BytesIO(data), parse_options=options)
    except (pa.ArrowException, UnicodeDecodeError):
        return _read_line_by_line(data, features)
    # Arrow also accepts two objects on a line, and one object on two lines.
    lines = [line for line in map(bytes.strip, data.splitlines()) if line]
    is_sound = len(table) == len(lines) and all(line[:1] + line[-1:] == b"{}" for line in lines)
    return (table, []) if is_sound else _read_line_by_line(data, features)


def _has_list(line: bytes, name: str) -> bool:
    try:
        return isinstance(json.loads(line)[name], list)
    except (ValueError, RecursionError, LookupError, TypeError):
        return False


def _read_line_by_line(data: bytes, features: FeatureNames) -> tuple[pa.Table, list[str]]:
    rows, problems = [], []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            rows.append(_row(json.loads(line), features))
        except (ValueError, RecursionError, OverflowError) as error:
            problems.append(f"line {number}: {error}")
    texts = [pa.array([row[place] for row in rows], pa.string()) for place in (0, 2, 3)]
    tags = pa.array([row[1] for row in rows], CATALOGUE_SCHEMA.field(columns.TAGS).type)
    said = [pa.array([row[4][place] for row in rows], field.type) for place, field in enumerate(features.fields)]
    names = [*CATALOGUE_SCHEMA.names, *features.all]
    return pa.table([texts[0], tags, *texts[1:], *said], names=names), problems


def _row(found: Any, features: FeatureNames) -> tuple[str | None, list[str] | None, str | None, str | None, list[Any]]:
    if not isinstance(found, dict):
        raise ValueError(f"is a {type(found).__name__}, not an object")
    tags = found.get(columns.TAGS)
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise ValueError("tags are no list of strings")
    item, start, end = _id(found.get(columns.ITEM_ID)), *(_time(found.get(name)) for name in _TIMES)
    lists: list[Any] = [_values(found.get(name), name) for name in features.categorical]
    for text in (item, start, end, *(tags or ()), *(value for values in lists for value in values or ())):
        if text is not None:
            text.encode()  # JSON can escape half a character
    return item, tags, start, end, lists + [_number(found.get(name), name) for name in features.dense]


def _values(value: object, name: str) -> list[str] | None:
    if value is None:
        return None
    values: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str) for one in values):
        raise ValueError(f"{name} is neither a string nor a list of strings")
    return values


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is no number")
    return float(value)


def _id(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{columns.ITEM_ID} is {json.dumps(value):.100}; {arrow_columns.NO_ID}")


def _time(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    raise ValueError(f"{value!r:.100} is no time")


_READERS: Final[dict[str, Callable[[bytes, FeatureNames], tuple[pa.Table, list[str]]]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_lines,
    ".ndjson": _read_lines,
    ".json": _read_lines,
    ".csv": _read_csv,
}


def _checked(rows: pa.Table, problems: list[str], features: FeatureNames, missing: MissingIds) -> Catalogue:
    """Cast rows to the catalogue's types, and leave out rows that do not fit; raises `TypeError` for a whole column."""
    times = {name: milliseconds(arrow_columns.column(rows, name)) for name in _TIMES}
    found = _typed(rows, [values for values, _ in times.values()], features)
    wrong = [
        *_wrong_items(found, missing),
        *((bad, f"{name} is no time", arrow_columns.column(rows, name)) for name, (_, bad) in times.items()),
        *_wrong_features(found, features),
    ]
    good, problems = np.ones(len(rows), np.bool_), list(problems)
    for bad, problem, came in wrong:
        refused = np.flatnonzero(bad & good)
        problems += [problem if came is None else f"{problem}: {came[row]}" for row in refused.tolist()]
        good[refused] = False
    return Catalogue.of(found.filter(pa.array(good)), len(problems), problems[0] if problems else "")


def _typed(rows: pa.Table, times: list[pa.Array], features: FeatureNames) -> pa.Table:
    ids = arrow_columns.texts(arrow_columns.column(rows, columns.ITEM_ID), columns.ITEM_ID)
    lists = [arrow_columns.text_lists(arrow_columns.column(rows, name), name) for name in features.categorical]
    numbers = [_dense(rows, name) for name in features.dense]
    schema = pa.schema([*CATALOGUE_SCHEMA, *features.fields])
    return pa.table([ids, _tag_lists(rows), *times, *lists, *numbers], schema=schema)


def _wrong_items(rows: pa.Table, missing: MissingIds) -> Iterator[_Wrong]:
    ids = rows[columns.ITEM_ID].combine_chunks()
    size = pc.fill_null(pc.binary_length(ids), 0).to_numpy(zero_copy_only=False)
    problem = f"an item_id is missing, empty or longer than {MAX_ID_BYTES} bytes"
    yield (size == 0) | (size > MAX_ID_BYTES), problem, None
    broken = arrow_columns.not_utf8(ids)
    yield broken, "an item_id is not UTF-8", None
    yield np.logical_or(*missing.marks(ids, broken)), "an item_id stands for no id (pipeline.missing_ids)", ids
    yield _holds_others(rows[columns.TAGS].combine_chunks()), "tags are no list of strings", None


def _wrong_features(rows: pa.Table, features: FeatureNames) -> Iterator[_Wrong]:
    for name in features.categorical:
        lists = rows[name].combine_chunks()
        counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        yield (counts > MAX_VALUES) | _holds_others(lists), f"{name} has no strings, or more than {MAX_VALUES}", None
    for name in features.dense:
        with np.errstate(over="ignore"):
            numbers = pc.fill_null(rows[name], 0.0).to_numpy().astype(np.float32)
        yield ~np.isfinite(numbers), f"{name} is no finite number", None


def _tag_lists(rows: pa.Table) -> pa.Array:
    tags = arrow_columns.column(rows, columns.TAGS)
    if arrow_columns.is_string(tags.type) or arrow_columns.is_bytes(tags.type):
        return lists_of_cells(arrow_columns.texts(tags, columns.TAGS))
    return arrow_columns.text_lists(tags, columns.TAGS)


def _holds_others(lists: pa.Array) -> Bool:
    """Mark the lists that have a null or a text that is not UTF-8."""
    places, values = values_of(lists)
    wrong = values.is_null().to_numpy(zero_copy_only=False) | arrow_columns.not_utf8(values)
    return np.bincount(places[wrong], minlength=len(lists)) > 0


def _dense(rows: pa.Table, name: str) -> pa.Array:
    """Return column `name` as doubles (n,); NaN for a text that is no number."""
    column = arrow_columns.column(rows, name)
    found, unread = arrow_columns.parsed_numbers(column, name)
    return pc.if_else(pa.array(unread), float("nan"), found) if unread.any() else found
