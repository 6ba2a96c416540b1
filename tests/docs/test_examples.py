"""The Python examples of the documentation run, and print what the pages say."""

import ast
import doctest
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = [
    (page.relative_to(ROOT).as_posix(), number, block)
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.M))
]
SCRIPTS = [block for block in BLOCKS if ">>>" not in block[2]]
DOCTESTS = sorted({page for page, _, block in BLOCKS if ">>>" in block})


@pytest.mark.parametrize("page", DOCTESTS)
def test_sessions(page: str) -> None:
    result = doctest.testfile(str(ROOT / page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_an_example_needs_two_imports_of_ours_at_most(page: str, number: int, block: str) -> None:
    lines = re.findall(r"^(?:>>> )?((?:from|import) .*)$", block, flags=re.M)
    assert sum(line.split()[1].split(".")[0] == "weir" for line in lines) <= 2


@pytest.mark.parametrize(("page", "number", "block"), SCRIPTS, ids=[f"{page}-{number}" for page, number, _ in SCRIPTS])
def test_what_a_script_imports_exists(page: str, number: int, block: str) -> None:
    imports = [node for node in ast.parse(block).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    exec(compile(ast.Module(imports, []), page, "exec"), {})  # noqa: S102 - our own pages


def test_the_example_of_evaluation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = [block for page, _, block in SCRIPTS if page == "docs/evaluation.md"]
    (tmp_path / "ml-1m").mkdir()
    rng = np.random.default_rng(0)
    log = {
        "user_id": rng.integers(0, 20, 500),
        "item_id": rng.integers(0, 50, 500),
        "timestamp": range(1_000_000_000, 1_000_000_500),
    }
    pq.write_table(pa.table(log), tmp_path / "ml-1m" / "interactions.parquet")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/evaluation.md", "exec"), {})  # noqa: S102 - our own page
    assert "recall@20" in capsys.readouterr().out
