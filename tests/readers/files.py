"""A small log in every format."""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ORIGIN = 1_700_000_000


@dataclass(frozen=True)
class Event:
    user: str
    item: str
    second: int
    type: str = "click"
    event_id: str | None = None
    genre: tuple[str, ...] | None = None
    price: float | None = None

    def row(self) -> dict[str, Any]:
        return {
            "user_id": self.user,
            "item_id": self.item,
            "timestamp": ORIGIN + self.second,
            "event_type": self.type,
            "event_id": self.event_id,
            "genre": self.genre,
            "price": self.price,
        }

    def line(self) -> str:
        return json.dumps({name: value for name, value in self.row().items() if value is not None}) + "\n"


def write_lines(path: Path, lines: Iterable[str], mode: str = "a") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(lines)


def write_gzip(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(lines).encode()))


def write_parquet(path: Path, events: Sequence[Event], row_group: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ("user_id", "item_id", "timestamp", "event_type", "event_id")
    fields = [(name, pa.int64() if name == "timestamp" else pa.string()) for name in names]
    schema = pa.schema([*fields, ("genre", pa.list_(pa.string())), ("price", pa.float64())])
    pq.write_table(pa.Table.from_pylist([event.row() for event in events], schema), path, row_group_size=row_group)


def write_delimited(path: Path, events: Sequence[Event]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [event.row() | {"genre": "|".join(event.genre or ())} for event in events]
    text = io.StringIO()
    delimiter = "\t" if ".tsv" in path.name else ","
    writer = csv.DictWriter(text, [*rows[0]], delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
