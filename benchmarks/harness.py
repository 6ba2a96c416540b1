"""What the benchmarks share: the command line, data sets, tables in Markdown, clocks, memory and Zipf's law."""

import json
import mmap
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Self

import numpy as np
import numpy.typing as npt
import typer

from weir.up.ports import free_port

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
DATA: Final = Path(os.pardir) / "shared" / "data"
Data = Annotated[Path, typer.Option(envvar="WEIR_DATA", help="folder of the data sets")]


def command_line(description: str | None) -> typer.Typer:
    """Return an app whose help is a module's docstring as it is written."""
    return typer.Typer(help=description, no_args_is_help=True, rich_markup_mode=None, add_completion=False)


def head(*names: str) -> None:
    """Print the head of a Markdown table."""
    row(*names)
    row(*("---" for _ in names))


def interactions_of(folder: Path, name: str) -> Path:
    """Return the log of a data set; where there is none, say so and end, as after work that is done."""
    log = folder / name / "interactions.parquet"
    if not log.exists():
        print(f"left out: {log} is not there; WEIR_DATA names the folder of the data sets")
        raise typer.Exit
    return log


def row(*cells: object) -> None:
    """Print a row of a Markdown table; floats that are not formatted yet get four digits."""
    texts = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells)
    print(f"| {' | '.join(texts)} |", flush=True)


def weir(*arguments: str) -> str:
    """Run a command, with its progress on standard error, and return what it prints."""
    command = [sys.executable, "-m", "weir", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def median_seconds(call: Callable[[], object], times: int) -> float:
    """Return the median wall time of a call, in seconds, after one call that is not timed."""
    call()
    found = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return float(np.median(found))


def figures_of_ranks(ranks: int, module: str, *arguments: object, machines: int = 1) -> F64:
    """Run the command ``rank`` of a module on so many ranks; return the figures that the first prints as JSON.

    Each of `machines` is a launcher with a share of the ranks, and takes the others to be elsewhere.
    """
    where = [f"--nnodes={machines}", f"--master-port={free_port()}", f"--nproc-per-node={ranks // machines}"]
    launcher, what = ["-m", "torch.distributed.run", *where], ["-m", module, "rank", *map(str, arguments)]
    commands = [[sys.executable, *launcher, f"--node-rank={number}", *what] for number in range(machines)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    printed = [run.communicate()[0] for run in runs]
    if any(run.returncode for run in runs):
        raise typer.Exit(1)
    return np.array(json.loads(printed[0].splitlines()[-1]))


def status(field: str, process: int | str = "self") -> int:
    """Return a size of a process as the kernel counts it (``VmRSS``, ``VmHWM``), in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


class Watch(ABC):
    """Looks at this process from a thread, every so many seconds, while inside."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._is_over = seconds, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(self._seconds):
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Note what there is now."""


class Peak(Watch):
    """By how many bytes the own memory of this process, and its mapped pages of files, have risen at most.

    The kernel keeps a peak of both together only.
    """

    def __init__(self) -> None:
        super().__init__(0.005)
        self._first, self.own, self.mapped = self._now(), 0, 0

    def look(self) -> None:
        """Note both, if they are more than ever."""
        own, mapped = (now - first for now, first in zip(self._now(), self._first, strict=True))
        self.own, self.mapped = max(self.own, own), max(self.mapped, mapped)

    def _now(self) -> tuple[int, int]:
        pages, files = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        return (pages - files) * mmap.PAGESIZE, files * mmap.PAGESIZE


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a running process; Linux keeps them in nanoseconds, by thread."""
    found = [(task / "schedstat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.split()[0]) for text in found) / 1e9


def zipf_ranks(items: int, events: int, exponent: float, rng: np.random.Generator) -> tuple[I64, F64]:
    """Return ranks (events,) drawn from a Zipf law, and the law (items,)."""
    law = np.arange(1, items + 1, dtype=np.float64) ** -exponent
    law /= law.sum()
    return np.minimum(np.searchsorted(np.cumsum(law), rng.random(events)), items - 1).astype(np.int64), law
