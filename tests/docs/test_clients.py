"""The examples of docs/clients.md run as they are written, against a real server."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google import api

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.serving.client import SERVICE_CONFIG

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clients.md").read_text()
TOOLS = ROOT / ".venv" / "clients"
CATALOGUE = Catalogue.random()
EXPECTED = CATALOGUE.top(CATALOGUE.user(["item-1", "item-2"]), 5)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.M)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = Store(str(tmp_path_factory.mktemp("clients") / "store"))
    write_bundle(store, "v1", CATALOGUE)
    with ServerProcess(store, http_port=0) as process:
        process.serving("v1")
        yield process


def adapted(block: str, server: ServerProcess) -> str:
    """Put this server's ports in place of the usual ones."""
    assert "localhost:50051" in block or "localhost:50080" in block
    over_http = server.said(r"HTTP on (127\.0\.0\.1:\d+)").group(1)
    return block.replace("localhost:50051", server.target).replace("localhost:50080", over_http)


def test_python(server: ServerProcess) -> None:
    script, _ = blocks("python")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(adapted(script, server), "docs/clients.md", "exec"), {})  # noqa: S102 - our own page
    lines = said.getvalue()
    history = ["item-1", "item-2"]
    assert str(CATALOGUE.top(CATALOGUE.user(history), 5, without=history)) in lines
    assert "popular items" in lines
    assert "INVALID_ARGUMENT INVALID_REQUEST {'queries[0].k': 'is 0, must be from 1 to 1000'}" in lines
    nearest = [CATALOGUE.top(CATALOGUE.user([item]), 3) for item in ("item-1", "item-2")]
    assert f"(2, 8) {nearest}" in lines


def test_python_with_asyncio(server: ServerProcess) -> None:
    _, script = blocks("python")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(adapted(script, server), "docs/clients.md", "exec"), {})  # noqa: S102 - our own page
    wanted = [CATALOGUE.top(CATALOGUE.user(history), 5) for history in (["item-1"], ["item-2", "item-3"])]
    assert said.getvalue() == f"{wanted}\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(server: ServerProcess) -> None:
    (command,) = blocks("bash")
    done = subprocess.run(["bash", "-ec", adapted(command, server)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["hits"][0]["itemIds"] == EXPECTED


@pytest.mark.skipif(
    shutil.which("node") is None or not (TOOLS / "node_modules" / "@grpc" / "grpc-js").is_dir(),
    reason="there is no Node, or no gRPC for it: make tools",
)
def test_javascript(server: ServerProcess, tmp_path: Path) -> None:
    (script,) = blocks("javascript")
    for name, target in (("node_modules", TOOLS / "node_modules"), ("proto", ROOT / "proto")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "ask.mjs").write_text(adapted(script, server))
    done = subprocess.run(["node", "ask.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, EXPECTED), done.stderr


@pytest.mark.skipif(not (TOOLS / "go" / "ready").is_file(), reason="there is no gRPC for Go: make tools")
def test_go(server: ServerProcess, tmp_path: Path) -> None:
    commands = re.search(r"^    go install .*?(^    file=.*?)\n\n", PAGE, flags=re.DOTALL | re.M)
    assert commands is not None
    google = Path(api.__path__[0]).parents[1]
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    for name in ("go.mod", "go.sum"):
        shutil.copy(TOOLS / "go" / name, tmp_path)
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 280}
    path = f"{TOOLS / 'go' / 'bin'}:{os.environ['PATH']}"
    protoc = f'protoc() {{ "{sys.executable}" -m grpc_tools.protoc "$@"; }}\n'
    made = protoc + re.sub(r"^    ", "", commands[1], flags=re.M)
    environment = {**os.environ, "PATH": path, "GOOGLE": str(google), "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
    compiled = subprocess.run(["bash", "-ec", made], env=environment, check=False, **run)  # type: ignore[call-overload]
    assert compiled.returncode == 0, compiled.stderr
    (script,) = blocks("go")
    (tmp_path / "main.go").write_text(adapted(script, server))
    done = subprocess.run(["go", "run", "."], env=environment, check=False, **run)  # type: ignore[call-overload]
    assert (done.returncode, done.stdout.split()) == (0, EXPECTED), done.stderr


def test_every_example_of_the_page_is_run_here() -> None:
    languages = re.findall(r"^```(\w+)$", PAGE, flags=re.M)
    assert sorted(languages) == ["bash", "go", "javascript", "python", "python"]


def test_every_example_repeats_calls_as_our_own_client_does(tmp_path: Path) -> None:
    (go,) = blocks("go")
    (found,) = re.findall(r"const config = `(.*?)`", go, flags=re.DOTALL)
    assert json.loads(found) == SERVICE_CONFIG
    (javascript,) = blocks("javascript")
    (found,) = re.findall(r"const config = (\{.*?\n\});", javascript, flags=re.DOTALL)
    without_quotes = re.sub(r"(?<=[{\s])(\w+):", r'"\1":', found)
    assert json.loads(re.sub(r",(\s*[}\]])", r"\1", without_quotes)) == SERVICE_CONFIG
