"""How fast logs are read: decode and validate per format, on a generated log, and `weir check`.

    OMP_NUM_THREADS=1 python -m benchmarks.readers

Seconds are those of the processor, without imports; the first reading of a file warms up.
"""

import csv
import gzip
import json
import tempfile
from collections.abc import Callable
from functools import partial
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
_PACKED: Final = ("lines.jsonl", "all-quoted.csv")


def _write(folder: Path, count: int) -> list[Path]:
    rows = _rows(count)
    for name, write in _PLAIN.items():
        write(folder / name, rows)
    for name in _PACKED:
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes(), 6))
    return sorted(folder.iterdir())


@app.command()
def run(
    rows: Annotated[int, typer.Option(help="rows of the log")] = 300_000,
    rounds: Annotated[int, typer.Option(help="readings of each file")] = 5,
) -> None:
    """Write the log in every format, read it, and print medians."""
    head("file", "MB", "MB/s", "events/s", "check, s")
    with tempfile.TemporaryDirectory() as folder:
        for file in _write(Path(folder), rows):
            config = LogConfig(log=str(file))
            calls = partial(_read, config), partial(check_log, config)
            calls[0]()
            read, check = (float(np.median([cpu_of_call(call) for _ in range(rounds)])) for call in calls)
            size = file.stat().st_size / 1e6
            row(file.name, size, size / read, f"{rows / read:,.0f}", check)


def _read(config: LogConfig) -> None:
    for _ in read_log(discover(config.log), config):
        pass


if __name__ == "__main__":
    app()
