"""How fast logs are read: decode and validate per format, on a generated log, and `weir check`.

    python -m benchmarks.readers run                          # this checkout
    python -m benchmarks.readers run --tree ../other          # beside the code of another checkout

With ``--tree`` both read the same files in turn, in processes of their own; the ratio is the median over pairs of the
processor's seconds here by those there, without imports: below 1 is faster.
"""

import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks.harness import command_line, cpu_of_call, head, row
from weir.check.report import check_log
from weir.readers import LogConfig, discover, read_log

_NAMES: Final = ("user_id", "item_id", "timestamp", "event_type", "comment")
Rows = list[tuple[Any, ...]]
app = command_line(__doc__)


def _rows(count: int) -> Rows:
    draws = np.random.default_rng(0)
    users, items = draws.integers(0, 50_000, count).tolist(), draws.zipf(1.2, count).tolist()
    comments = ["good", "", "as expected, thank you", "arrived late"]
    return [
        (f"u{user}", f"item-{item % 100_000}", 1_700_000_000 + place, "click", comments[place % len(comments)])
        for place, (user, item) in enumerate(zip(users, items, strict=True))
    ]


def _lines(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(dict(zip(_NAMES, one, strict=True))) + "\n" for one in rows))


def _table(path: Path, rows: Rows, quoting: Any = csv.QUOTE_MINIMAL, delimiter: str = ",") -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=quoting, delimiter=delimiter).writerows([_NAMES, *rows])


def _parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.table(dict(zip(_NAMES, map(list, zip(*rows, strict=True)), strict=True))), path)


_PLAIN: Final[dict[str, Callable[[Path, Rows], None]]] = {
    "lines.jsonl": _lines,
    "some-quotes.csv": _table,
    "all-quoted.csv": lambda path, rows: _table(path, rows, csv.QUOTE_ALL),
    "no-quotes.csv": lambda path, rows: _table(path, [(*one[:4], "none") for one in rows]),
    "table.tsv": lambda path, rows: _table(path, rows, delimiter="\t"),
    "table.parquet": _parquet,
}


def _write(folder: Path, count: int) -> list[Path]:
    rows = _rows(count)
    for name, write in _PLAIN.items():
        write(folder / name, rows)
    for name in ("lines.jsonl", "all-quoted.csv"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes(), 6))
    return sorted(folder.iterdir())


@app.command()
def one(file: Path) -> None:
    """Read a file with the modules that are found first; print rows, and seconds of reading and of a check."""
    config = LogConfig(log=str(file))
    found = sum(len(valid.rows) for valid, _ in read_log(discover(str(file)), config))
    read = cpu_of_call(lambda: [*read_log(discover(str(file)), config)])
    print(json.dumps([found, read, cpu_of_call(lambda: check_log(config))]))


def _measured(tree: Path, file: Path) -> tuple[float, ...]:
    command, place = [sys.executable, "-P", __file__, "one", str(file)], {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=place, cwd=tree)
    return tuple(json.loads(done.stdout.splitlines()[-1]))


@app.command()
def run(
    rows: Annotated[int, typer.Option(help="rows of the log")] = 300_000,
    pairs: Annotated[int, typer.Option(help="readings of each file")] = 5,
    tree: Annotated[Path | None, typer.Option(help="another checkout to compare with")] = None,
) -> None:
    """Write the log in every format, read it and print MB/s, events/s and with a tree the ratios."""
    head("file", "MB", "MB/s", "events/s", "check, s", *(["read, ratio", "check, ratio"] if tree else []))
    with tempfile.TemporaryDirectory() as folder:
        for file in _write(Path(folder), rows):
            found = [
                [_measured(where, file) for where in (Path(__file__).parents[1], tree) if where] for _ in range(pairs)
            ]
            events, read, check = np.median(np.array([pair[0] for pair in found]), axis=0)
            ratios = [np.median([here[kind] / there[kind] for here, there in found]) for kind in (1, 2)] if tree else []
            size = file.stat().st_size / 1e6
            row(file.name, size, size / read, f"{events / read:,.0f}", float(check), *map(float, ratios))


if __name__ == "__main__":
    app()
