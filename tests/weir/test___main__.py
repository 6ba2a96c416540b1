"""Ctrl-C, from the first import to a call under way."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from weir.__main__ import main


def test_ctrl_c_while_the_commands_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "weir.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "weir.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


@pytest.mark.parametrize("command", [["query", "ann"], ["click", "ann", "item"]], ids=["query", "click"])
def test_ctrl_c_while_a_server_is_waited_for(tmp_path: Path, command: list[str]) -> None:
    """The server takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "weir", *command, "--target", target, "--store", str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (130, b"")


def test_ctrl_c_ends_up_without_a_traceback(tmp_path: Path) -> None:
    ports = [
        part
        for section in ("pipeline", "trainer", "serving", "monitor")
        for part in ("--set", f"{section}.metrics_port=0")
    ]
    ports += ["--set", "serving.port=0", "--set", "serving.http_port=0", "--set", "monitor.page_port=0"]
    command = ["up", "--demo", "--store", str(tmp_path / "store"), "--ranks", "1", *ports]
    process = subprocess.Popen([sys.executable, "-m", "weir", *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "see it work" in first
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert "Traceback" not in told
    assert process.returncode in {0, 130}
