"""Small logs that decode to gigabytes: no command that reads a log takes more than 1 GiB for them.

The short form reads a log with a bomb of every format at once. `WEIR_CAMPAIGN=long` reads larger ones, each by itself.
"""

import gzip
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines import support
from weir.contracts import CommitLog, LogState, Store

logger = logging.getLogger(__name__)

LIMIT: Final = 1 << 30
IS_LONG: Final = os.environ.get("WEIR_CAMPAIGN") == "long"
VALID: Final = '{"user_id":"u","item_id":"i","timestamp":1700000000}\n'
ROW: Final = "u,i,1700000000\n"
HEADER: Final = "user_id,item_id,timestamp\n"


def lines(path: Path, count: int) -> int:
    return text(path, VALID, "x\n", count)


def rows(path: Path, count: int) -> int:
    return text(path, HEADER + ROW, "x\n", count)


def tabs(path: Path, count: int) -> int:
    return text(path, (HEADER + ROW).replace(",", "\t"), "x\n", count)


def blanks(path: Path, count: int) -> int:
    return 0 * text(path, VALID, "\n", count)


def long_row(path: Path, count: int) -> int:
    """One row that is as long as all of them."""
    return text(path, VALID if ".jsonl" in path.name else HEADER + ROW, "x" * count + "\n", 1)


def open_quote(path: Path, count: int) -> int:
    """A quote that never closes: one row, which a follower waits for."""
    return 0 * text(path, HEADER + ROW + '"', "x\n", count)


def text(path: Path, start: str, row: str, count: int) -> int:
    """Write a valid event and then broken rows; return how many."""
    data = (start + row * count).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return count


def long_ids(path: Path, count: int) -> int:
    """Ids that a dictionary has once."""
    ids = dictionary(["u", "u" * 600], count)
    pq.write_table(pa.table({"user_id": ids, "item_id": ids, "timestamp": times(count)}), path, store_schema=False)
    return count


def long_tokens(path: Path, count: int) -> int:
    """Valid rows of which each token is as long as it may be: they reach the windows."""
    ids = dictionary(["u"], count)
    columns = {
        "user_id": ids,
        "item_id": ids,
        "timestamp": times(count),
        "attribution_token": dictionary(["t" * 4096], count),
    }
    pq.write_table(pa.table(columns), path, store_schema=False)
    return 0


def nulls(path: Path, count: int) -> int:
    """Run lengths of nothing."""
    ids = pa.array(["u"] + [None] * count)
    pq.write_table(pa.table({"user_id": ids, "item_id": ids, "timestamp": times(count)}), path)
    return count


def lists(path: Path, count: int) -> int:
    """A list of a thousand values for each id: the column is refused by its type, one letter for each block."""
    values = pa.array(np.zeros(1000 * count, np.int8)).cast(pa.int64())
    ids = pa.ListArray.from_arrays(np.arange(0, 1000 * count + 1, 1000, dtype=np.int32), values)
    pq.write_table(pa.table({"user_id": ids, "item_id": ids, "timestamp": times(count - 1)}), path)
    return -1


def columns(path: Path, count: int) -> int:
    """More columns than rows, none of which is read but three."""
    broken = pa.array(["u", *[""] * 99])
    named = {"user_id": broken, "item_id": broken, "timestamp": times(99)}
    pq.write_table(pa.table(named | {f"c{n}": np.zeros(100) for n in range(count // 100)}), path)
    return 99


def groups(path: Path, count: int) -> int:
    """A row group for each row."""
    found = max(2, count // 100)
    table = pa.table({"user_id": ["u", *[""] * (found - 1)], "item_id": ["i"] * found, "timestamp": times(found - 1)})
    pq.write_table(table, path, row_group_size=1)
    return found - 1


def dictionary(words: list[str], count: int) -> pa.Array:
    """The first word once, then the last one `count` times."""
    places = np.append(0, np.full(count, len(words) - 1)).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(words))


def times(count: int) -> pa.Array:
    return pa.array(np.full(count + 1, 1_700_000_000))


BOMBS: Final[dict[str, tuple[Callable[[Path, int], int], int]]] = {
    "lines.jsonl": (lines, 6_000_000),
    "blank.jsonl": (blanks, 6_000_000),
    "lines.jsonl.gz": (lines, 6_000_000),
    "rows.csv": (rows, 3_000_000),
    "rows.tsv": (tabs, 3_000_000),
    "rows.csv.gz": (rows, 3_000_000),
    "rows.tsv.gz": (tabs, 3_000_000),
    "long.jsonl": (long_row, 500_000_000),
    "long.jsonl.gz": (long_row, 500_000_000),
    "long.csv": (long_row, 500_000_000),
    "quote.csv": (open_quote, 6_000_000),
    "ids.parquet": (long_ids, 900_000),
    "tokens.parquet": (long_tokens, 900_000),
    "nulls.parquet": (nulls, 3_000_000),
    "lists.parquet": (lists, 20_000),
    "columns.parquet": (columns, 1_000_000),
    "groups.parquet": (groups, 1_000_000),
}
"""File -> what writes it, and of how many rows in the long form."""
SHARE: Final = 25
"""So many times as large are the bombs of the long form."""


def write(folder: Path, names: list[str], share: int) -> dict[str, int]:
    """Write bombs; return how many dead letters each must give, -1 where it is one for each block."""
    folder.mkdir()
    return {name: BOMBS[name][0](folder / name, BOMBS[name][1] // share) for name in names}


WEIR: Final = "runpy.run_module('weir', run_name='__main__', alter_sys=True)"
READ: Final = "from weir.trainer.offline.data import read_interactions; read_interactions(sys.argv[1], newest={})"
PEAK: Final = r"""
import atexit, pathlib, re, runpy, sys
atexit.register(lambda: print(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]))
"""
"""At its end a process prints its own peak, KiB: `ru_maxrss` would count that of the process that has started it."""


def peak_of(code: str, arguments: list[str], until: Callable[[], bool] | None = None) -> int:
    """Run code in a process, ended by SIGTERM where `until` says when; return its peak of memory in bytes."""
    process = subprocess.Popen([sys.executable, "-c", PEAK + code, *arguments], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 1800
    while until is not None and not until():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.5)
    if until is not None:
        process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    assert process.returncode == 0
    peak = int(printed.splitlines()[-1]) << 10
    logger.info("peak %d MiB: %s %s", peak >> 20, code, arguments)
    return peak


def letters_of(store: Store) -> Iterator[tuple[str, int]]:
    """The dead letters of all commits: partition and count."""
    log = CommitLog(store)
    for number in range(log.newest() + 1):
        for file in log.get(number).letters:
            yield file.partition, file.rows


FORMS: Final = [[name] for name in BOMBS] if IS_LONG else [[*BOMBS]]


@pytest.mark.parametrize("follow", [False, True], ids=["bounded", "following"])
@pytest.mark.parametrize("names", FORMS, ids="+".join)
def test_ingesting_a_bomb_takes_less_than_a_gibibyte(tmp_path: Path, names: list[str], *, follow: bool) -> None:
    dead = write(tmp_path / "log", names, 1 if IS_LONG else SHARE)
    if "lists.parquet" in names:
        (tmp_path / "log" / "valid.jsonl").write_text(VALID)
    store = Store(str(tmp_path / "store"))
    changes = ["pipeline.metrics_port=0", "pipeline.idle_seconds=1"]
    flags = [part for change in changes for part in ("--set", change)] + ["--follow"] * follow
    wanted = {name: count for name, count in dead.items() if count > 0}

    def is_done() -> bool:
        sources = LogState.open(store).sources
        return len(sources) == len(list((tmp_path / "log").iterdir())) and all(
            span.resume == span.stop and span.size == (tmp_path / "log" / key).stat().st_size
            for key, span in sources.items()
        )

    arguments = ["ingest", "--store", store.url, "--log", str(tmp_path / "log"), *flags]
    assert peak_of(WEIR, arguments, is_done if follow else None) < LIMIT
    assert is_done()
    found = dict.fromkeys(wanted, 0)
    for name, count in letters_of(store):
        found[name] = found.get(name, 0) + count
    assert {name: found[name] for name in wanted} == wanted
    valid = sum(manifest.counts.events for manifest in support.committed(store))
    tokens = BOMBS["tokens.parquet"][1] // (1 if IS_LONG else SHARE) if "tokens.parquet" in names else 0
    assert valid == len(names) + tokens
    if not follow:
        assert peak_of(WEIR, ["retry", "--store", store.url, "--log", str(tmp_path / "log")]) < LIMIT


def test_retrying_a_bomb_takes_less_than_a_gibibyte(tmp_path: Path) -> None:
    """All rows but one become valid under other settings."""
    share, folder = 1 if IS_LONG else SHARE, tmp_path / "log"
    folder.mkdir()
    rows = text(folder / "rows.jsonl", VALID.replace("item_id", "other"), VALID, 2_000_000 // share)
    long_tokens(folder / "tokens.parquet", tokens := 900_000 // share)
    store = Store(str(tmp_path / "store"))
    common = ["--store", store.url, "--log", str(folder), "--set", "pipeline.metrics_port=0"]
    peak_of(WEIR, ["ingest", *common, "--set", "pipeline.columns.item_id=other"])
    peak_of(WEIR, ["settings", "--store", store.url, "--set", "pipeline.columns.item_id=item_id"])
    assert peak_of(WEIR, ["retry", *common]) < LIMIT
    assert sum(manifest.counts.events for manifest in support.committed(store)) == 1 + rows + tokens + 1


@pytest.mark.parametrize(
    ("code", "before"),
    [(WEIR, ["check"]), (READ.format(None), []), (READ.format(1_000_000), [])],
    ids=["check", "evaluate", "evaluate-quick"],
)
@pytest.mark.parametrize("names", FORMS, ids="+".join)
def test_looking_at_a_bomb_takes_less_than_a_gibibyte(
    tmp_path: Path, names: list[str], code: str, before: list[str]
) -> None:
    write(tmp_path / "log", names, 1 if IS_LONG else SHARE)
    (tmp_path / "log" / "valid.jsonl").write_text(VALID)
    assert peak_of(code, [*before, str(tmp_path / "log")]) < LIMIT
