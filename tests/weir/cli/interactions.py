"""A small file of interactions, and the commands that compare, for their tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import Result
from typer.testing import CliRunner

from weir.cli.main import app

TINY = [
    *("--set", "trainer.tower.dimension=8", "--set", "trainer.tower.history_length=5"),
    *("--set", "trainer.batch_size=16", "--set", "trainer.negatives.uniform=8", "-k", "5", "-k", "20"),
]


def write_circles(path: Path, rows: int = 300, **more: list[Any]) -> Path:
    """Write 20 users who each go around 40 items from a place of their own; columns may be added or taken away."""
    row = np.arange(rows)
    users, step = row % 20, row // 20
    columns = {
        "user_id": [f"user-{user}" for user in users],
        "item_id": (5 * users + step) % 40,
        "timestamp": 1_700_000_000 + row,
        **more,
    }
    pq.write_table(pa.table({name: values for name, values in columns.items() if len(values)}), path)
    return path


def weir(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "TERM": "dumb"})


def told(result: Result, status: int = 0) -> Any:
    """Return what a command prints for programs, by the letter of JSON."""
    assert result.exit_code == status, result.output + repr(result.exception)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(result.stdout, parse_constant=refuse)


def refused(result: Result, status: int) -> str:
    """Return the one line that a command fails with."""
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("weir: ")
    return lines[0]
