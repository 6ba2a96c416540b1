import base64
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.trainer.offline.report.comparisons import write
from weir.trainer.offline.report import write_report

FILES = {"table.md", "table.csv", "curves.png", "popularity.png", "report.html"}


def written(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} & FILES


def test_the_page_holds_the_pictures_that_lie_beside_it(tmp_path: Path) -> None:
    write(tmp_path, ["BPR", "CCL"], [0])
    page = write_report(tmp_path)
    assert page == tmp_path / "report.html"
    assert written(tmp_path) == FILES
    inlined = [base64.b64decode(data) for data in re.findall(r"data:image/png;base64,([\w+/=]+)", page.read_text())]
    assert len(inlined) == 4
    assert all(Image.open(io.BytesIO(data)).format == "PNG" for data in inlined)
    for name in ("curves.png", "popularity.png"):
        assert (tmp_path / name).read_bytes() in inlined


def test_a_half_finished_comparison_is_reported_and_again_when_it_is_finished(tmp_path: Path) -> None:
    rows = [f"Row {number}" for number in range(8)]
    write(tmp_path, rows, finished=lambda row, seed: row + seed < 5)
    write_report(tmp_path)
    for name in ("table.md", "report.html"):
        assert "Unfinished: 12 of 24 runs done" in (tmp_path / name).read_text()
    write(tmp_path, rows)
    write_report(tmp_path)
    for name in ("table.md", "report.html"):
        assert "nfinished" not in (tmp_path / name).read_text()


def test_without_a_comparison_there_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"comparison\.json: not found"):
        write_report(tmp_path)


@pytest.mark.parametrize("module", ["matplotlib", "jinja2"])
def test_a_missing_library_is_named_with_the_extra_that_brings_it(tmp_path: Path, module: str) -> None:
    write(tmp_path, ["BPR"], [0])
    code = f"""
import sys
sys.modules[{module!r}] = None
from pathlib import Path
from weir.trainer.offline.report import write_report
try:
    write_report(Path({str(tmp_path)!r}))
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        done.stdout == f"ImportError a report needs {module}: install it with `pip install 'weir-retrieval[bench]'`\n"
    )
    assert not written(tmp_path)
