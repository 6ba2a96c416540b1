"""A shell that runs the commands of a page one after the other, with a network of its own.

So every page may use the usual ports, whatever else runs. It has its own names of hosts, too, and its own processes,
which end with it.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Final

from tests.docs.blocks import ROOT

__all__ = ["Ran", "Shell", "is_possible", "shell"]

_ALONE: Final = ("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_HOSTS: Final = "127.0.0.1 localhost broker cache FIRST\n"
"""The names of other machines on the pages: here all are this one."""
_USUAL: Final = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
_PATIENCE: Final = 240.0


@dataclass(frozen=True)
class Ran:
    """A command that has ended: its exit status and what it printed."""

    command: str
    status: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"$ {self.command}\n{self.out}{self.err}(exit status {self.status})"


@dataclass
class Shell:
    """A running shell with its folder; `behind` holds the commands in the background and the file of their output."""

    folder: Path
    _process: "subprocess.Popen[str]"
    _answers: IO[str]
    _written: Path
    behind: dict[str, tuple[int, Path]] = field(default_factory=dict)
    _count: int = 0

    def run(self, command: str) -> Ran:
        """Run a command to its end."""
        script = self._script(command)
        out, err = script.with_suffix(".out"), script.with_suffix(".err")
        status = self._ask(f". {script} >{out} 2>{err} </dev/null 9>&-; echo $? >&9")
        return Ran(command, status, out.read_text(), err.read_text())

    def start(self, command: str, ready: str) -> Ran:
        """Start a command in the background; return what it has printed once that fits `ready`."""
        script = self._script(command)
        printed = script.with_suffix(".out")
        printed.touch()
        pid = self._ask(f"{{ . {script}; }} >{printed} 2>&1 </dev/null 9>&- & echo $! >&9")
        self.behind[command] = (pid, printed)
        ends = time.monotonic() + _PATIENCE
        while not re.search(ready, printed.read_text()):
            has_ended = self._ask(f"kill -0 {pid} 2>/dev/null; echo $? >&9") != 0
            if has_ended or time.monotonic() > ends:
                raise AssertionError(f"$ {command}\nnot printed: {ready}\n{printed.read_text()}")
            time.sleep(0.2)
        return Ran(command, 0, printed.read_text(), "")

    def stop(self, command: str) -> Ran:
        """End a command of the background as Ctrl-C would, and return what it has printed."""
        pid, printed = self.behind.pop(command)
        status = self._ask(f"kill -INT -- -{pid} 2>/dev/null; wait {pid} 2>/dev/null; echo $? >&9")
        return Ran(command, status, printed.read_text(), "")

    def _script(self, command: str) -> Path:
        self._count += 1
        script = self._written / f"{self._count:03}.sh"
        script.write_text(command + "\n")
        return script

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._answers.readline()
        assert answer, f"the shell has ended: {line}"
        return int(answer)


@cache
def is_possible() -> bool:
    """Return whether the kernel gives a process a network, hosts and processes of its own."""
    return (
        shutil.which("ip") is not None
        and subprocess.run([*_ALONE, "true"], capture_output=True, check=False).returncode == 0
    )


@contextmanager
def shell(folder: Path, environment: Mapping[str, str]) -> Iterator[Shell]:
    """Run a shell in a folder that looks like a checkout, where the repository itself cannot be written to."""
    (folder / "page").mkdir()
    for name in ("benchmarks", "proto", ".venv"):
        (folder / "page" / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "deploy", folder / "page" / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "hosts").write_text(_HOSTS)
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*_ALONE, "bash", "--norc"],
        cwd=folder / "page",
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **_USUAL, **environment},
        stdin=subprocess.PIPE,
        text=True,
        pass_fds=[writer],
    )
    os.close(writer)
    assert process.stdin is not None
    process.stdin.write(
        f"exec 9>&{writer} {writer}>&- 2>/dev/null; set -m; ip link set lo up; mount --bind {folder}/hosts /etc/hosts\n"
        f"mount --bind {ROOT} {ROOT}; mount --options remount,bind,ro {ROOT}\n"
    )
    try:
        with os.fdopen(reader) as answers:
            yield Shell(folder / "page", process, answers, folder)
    finally:
        process.kill()
        process.wait(30)
