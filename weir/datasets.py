"""Convert a downloaded MovieLens folder to a log of ratings in order of time.

Source: Harper & Konstan, "The MovieLens Datasets: History and Context", TiiS 2015. Releases differ in three layouts.
"""

import csv
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from weir.contracts import Store, UserError
from weir.contracts.base import columns
from weir.contracts.base.models import FrozenModel

__all__ = ["LAYOUTS", "Converted", "Layout", "MovieLensError", "convert"]

Report = Callable[[str, float], None]
"""Progress callback: takes the current step, ``read`` or ``written``, and the step's finished share."""

_FIELDS: Final = {"user": pa.int64(), "movie": pa.int64(), "rating": pa.float32(), "seconds": pa.int64()}
_BLOCK_BYTES: Final = 1 << 24
_ROW_GROUP: Final = 1 << 17
_SCHEMA: Final = pa.schema(
    {
        columns.USER_ID: pa.string(),
        columns.ITEM_ID: pa.string(),
        columns.TIMESTAMP: pa.timestamp("ms", "UTC"),
        "rating": pa.float32(),
    }
)


class MovieLensError(UserError):
    """A folder is not a MovieLens data set, or a file in it is damaged."""

    hint = "download and unpack one of https://grouplens.org/datasets/movielens/"


@dataclass(frozen=True)
class Layout:
    """File names, separators and encoding of some MovieLens releases; columns are user, film, rating and seconds."""

    ratings: str
    movies: str
    separator: str
    releases: str
    movies_separator: str = "::"
    encoding: str = "latin-1"

    @property
    def has_header(self) -> bool:
        """Whether the first line of the file of ratings has column names."""
        return self.ratings.endswith(".csv")


LAYOUTS: Final = (
    Layout(
        "ratings.csv", "movies.csv", ",", "ml-latest, ml-20m, ml-25m, ml-32m", movies_separator=",", encoding="utf-8"
    ),
    Layout("ratings.dat", "movies.dat", "::", "ml-1m, ml-10m"),
    Layout("u.data", "u.item", "\t", "ml-100k", movies_separator="|"),
)


class Converted(FrozenModel):
    """Summary of a converted data set: path and counts of the log; times are milliseconds since 1970."""

    log: str
    events: int
    users: int
    items: int
    start_ms: int
    end_ms: int


def convert(folder: Path, output: Path, report: Report | None = None) -> Converted:
    """Write the ratings in a MovieLens folder as a Parquet log, atomically, in order of time.

    Each rating is an event; its value is kept in the column ``rating``. Item ids are title and number
    (``toy-story-1995-1``), or the number alone if the folder has no file of films. `report` is told the progress.

    Raises
    ------
    MovieLensError
        If the folder has no file of ratings, or one that is damaged or empty.
    """
    layout = _layout(folder)
    ratings = _ratings(folder / layout.ratings, layout, report)
    if not len(ratings):
        raise MovieLensError(f"{folder / layout.ratings}: has no rating")
    films = _Films.of(ratings, _titles(folder / layout.movies, layout))
    seconds = ratings["seconds"].to_numpy()
    order = np.argsort(seconds, kind="stable")

    def fill(file: IO[bytes]) -> None:
        with pq.ParquetWriter(file, _SCHEMA) as writer:
            for start in range(0, len(order), _ROW_GROUP):
                writer.write_table(_events(ratings.take(order[start : start + _ROW_GROUP]), films))
                if report:
                    report("written", min(1.0, (start + _ROW_GROUP) / len(order)))

    Store(str(output.parent)).write_with(output.name, fill, rows=len(order))
    return Converted(
        log=str(output),
        events=len(order),
        users=pc.count_distinct(ratings["user"]).as_py(),
        items=len(films.numbers),
        start_ms=1000 * int(seconds[order[0]]),
        end_ms=1000 * int(seconds[order[-1]]),
    )


@dataclass(frozen=True, eq=False)
class _Films:
    """The rated films: their numbers (n,), ascending, and their item ids."""

    numbers: npt.NDArray[np.int64]
    names: pa.Array

    @classmethod
    def of(cls, ratings: pa.Table, titles: dict[int, str]) -> "_Films":
        numbers = np.sort(pc.unique(ratings["movie"]).to_numpy())
        return cls(numbers, pa.array([_name(number, titles.get(number, "")) for number in numbers.tolist()]))


def _events(ratings: pa.Table, films: _Films) -> pa.Table:
    """Convert ratings to rows of the log."""
    film = np.searchsorted(films.numbers, ratings["movie"].to_numpy())
    times = pc.multiply(ratings["seconds"], 1000).cast(_SCHEMA.field(columns.TIMESTAMP).type)
    parts = [ratings["user"].cast(pa.string()), films.names.take(pa.array(film)), times, ratings["rating"]]
    return pa.table(parts, schema=_SCHEMA)


def _layout(folder: Path) -> Layout:
    """Return the layout whose file of ratings is in the folder; raises `MovieLensError` if there is none."""
    for layout in LAYOUTS:
        if (folder / layout.ratings).is_file():
            return layout
    looked_for = ", ".join(f"{layout.ratings} ({layout.releases})" for layout in LAYOUTS)
    if not folder.is_dir():
        came = "is a file; name the folder that it unpacks to" if folder.exists() else "there is no such folder"
        raise MovieLensError(f"{folder}: {came}, with one of {looked_for}")
    inside = sorted(child.parent for layout in LAYOUTS for child in folder.glob(f"*/{layout.ratings}"))
    elsewhere = f"; {inside[0]} has one: name that folder" if inside else ""
    raise MovieLensError(f"{folder}: has none of {looked_for}{elsewhere}")


def _ratings(path: Path, layout: Layout, report: Report | None) -> pa.Table:
    """Read all ratings, in the order of the file; raises `MovieLensError`."""
    # Arrow supports one-character separators only: `::` is read as two, with an empty column between.
    sign = layout.separator[0]
    names = [part for name in _FIELDS for part in (name, *(f"after {name}" for _ in layout.separator[1:]))]
    names = names[: len(names) - len(layout.separator) + 1]
    size, batches = path.stat().st_size, []
    try:
        with pa.OSFile(str(path)) as file:
            reader = pa.csv.open_csv(
                file,
                pa.csv.ReadOptions(column_names=names, skip_rows=int(layout.has_header), block_size=_BLOCK_BYTES),
                pa.csv.ParseOptions(delimiter=sign, quote_char=False),
                pa.csv.ConvertOptions(column_types=_FIELDS, include_columns=[*_FIELDS]),
            )
            for batch in reader:
                batches.append(batch)
                if report:
                    report("read", file.tell() / size)
    except pa.ArrowInvalid as error:
        if "Empty CSV" not in str(error):
            raise MovieLensError(f"{path}: is damaged: {error}") from error
    return pa.Table.from_batches(batches, pa.schema(_FIELDS.items()))


def _titles(path: Path, layout: Layout) -> dict[int, str]:
    """Return the titles of films by number; empty if the file does not exist."""
    if not path.is_file():
        return {}
    text = path.read_text(layout.encoding)
    if layout.movies_separator == ",":
        rows = list(csv.reader(text.splitlines()))
    else:
        rows = [line.split(layout.movies_separator) for line in text.split("\n")]
    return {int(row[0]): row[1] for row in rows if len(row) > 1 and row[0].isdecimal()}


def _name(movie: int, title: str) -> str:
    """Return the item id of a film: the words of its title in ASCII, and its unique number."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return "-".join([*re.findall(r"[a-z0-9]+", plain), str(movie)])
