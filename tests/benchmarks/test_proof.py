"""The proof on a small log: each table has its rows, and the defaults are above every simple method in NDCG."""

import subprocess
import sys
from pathlib import Path

import pytest

FORGETTING = " with recency decay"
PEERS = {"popularity", "popularity of the last days", "item-kNN", "EASE", f"item-kNN{FORGETTING}", f"EASE{FORGETTING}"}
ROWS = {f"{pool}, {correction}" for pool in ("in-batch", "mixed") for correction in ("none", "standard", "improved")}


@pytest.mark.timeout(900)
def test_the_quick_proof_shows_what_is_above_what(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.proof",
        "quick",
        "--out",
        str(tmp_path),
        "--seeds",
        "1",
        "--steps",
        "60",
    ]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    offline, _, rest = printed.partition("## generated, small: one pass")
    *_, streamed = rest.partition("### all windows")[2].partition("\n\n| beside")
    for table in (offline, streamed):
        leads = {cells[0]: cells[6] for cells in _rows(table) if cells[0] in PEERS}
        assert set(leads) == PEERS
        assert all(float(ends.split(" to ")[0]) > 0 for ends in leads.values()), leads
    assert {cells[0] for cells in _rows(rest)} >= ROWS


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
