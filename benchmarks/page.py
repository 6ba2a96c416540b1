"""Memory of the page over a long demo: the tab of a headless Chromium, the monitor that serves it, the server.

    OMP_NUM_THREADS=1 python -m benchmarks.page                              # ten minutes at twice the demo's speed

The log is the demo's, but longer, so that events keep coming at the demo's rate times `--speed`, in windows as long as
the demo's. `weir up --demo` replays it with the demo's settings. The browser opens the page, asks for a user and stays.
A row each half minute:

- windows: committed so far, and as the page shows them. Where the first lags behind the log, the machine is too busy
  for the speed.
- heap and nodes: of the tab, after a garbage collection. Tab: memory of its process that is not mapped from a file.
- monitor (the page included) and server: the same of their processes.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from selenium import webdriver

from benchmarks.harness import command_line, head, row, status
from weir.contracts import Store, WindowLog
from weir.demo.generator import GENERATED, GeneratorConfig, generate
from weir.up.ports import PORTS

app = command_line(__doc__)
SECONDS: Final = 120
"""The demo's log, of the generator's defaults, is replayed in so many seconds."""
WINDOW: Final = 12 * 3600
EVERY: Final = 30


@contextmanager
def demo(folder: Path, minutes: float, speed: float) -> Iterator[tuple[int, Store, str]]:
    """Run `weir up` on a log of so many minutes; yields its process, store and page, which asks for a user."""
    times, log, store = 60 * minutes * speed / SECONDS, folder / "plays.jsonl", Store(str(folder / "store"))
    usual = GeneratorConfig()
    made = generate(usual.model_copy(update={"events": round(usual.events * times), "days": round(usual.days * times)}))
    log.write_bytes(made.lines)
    settings = ["trainer.batch_size=128", "trainer.negatives.uniform=128", f"pipeline.window_seconds={WINDOW}"]
    settings += [f"pipeline.event_types.{kind}={label}" for kind, label in GENERATED["event_types"].items()]
    settings += [f"{port}=0" for port in PORTS]
    command = ["up", "--demo", "--log", str(log), "--store", store.url, "--seconds", str(60 * minutes)]
    command += [part for setting in settings for part in ("--set", setting)]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "weir", *command],
            stderr=said,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "COLUMNS": "400"},
        )
    try:
        yield process.pid, store, answering(folder / "said", process)
    finally:
        process.terminate()
        process.wait()


def answering(said: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait for the first answer of a demo; return the address of its page. Raises `RuntimeError` if it ends."""
    while process.poll() is None:
        text = said.read_text()
        if "weir query" in text and (found := re.search(r"see it work: (\S+)", text)):
            return found.group(1)
        time.sleep(0.5)
    raise RuntimeError(said.read_text())


@contextmanager
def browser() -> Iterator[Any]:
    """Run a headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    found.set_page_load_timeout(300)
    try:
        found.execute_cdp_cmd("Performance.enable", {})
        yield found
    finally:
        found.quit()


def children(root: int) -> dict[int, str]:
    """Return the command lines of the processes below one; threads and processes may end meanwhile."""
    found: dict[int, str] = {}
    for task in Path("/proc").glob(f"{root}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
                found |= children(child)
    return found


def megabytes(root: int, word: str) -> float:
    """Return the memory, not mapped from files, of the largest process below `root` whose command line has a word."""
    return max(status("RssAnon", process) for process, line in children(root).items() if f" {word} " in line) / 1e6


def tab(found: Any) -> tuple[float, int, int]:
    """Return the heap in megabytes, the nodes, and the windows that the page shows."""
    found.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    metrics = {one["name"]: one["value"] for one in found.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
    shown = found.execute_script("return document.querySelectorAll('#path .value')[1]?.textContent ?? ''")
    return metrics["JSHeapUsedSize"] / 1e6, int(metrics["Nodes"]), int(shown.replace(",", "") or 0)


@app.command(help=__doc__)
def main(
    minutes: Annotated[float, typer.Option(help="how long the page is watched")] = 10,
    speed: Annotated[float, typer.Option(help="of the demo's own")] = 2,
    folder: Annotated[
        Path | None, typer.Option(help="where log and store are written, and removed", exists=True)
    ] = None,
) -> None:
    """Print a row each half minute."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-page-", dir=folder) as made,
        browser() as found,
        demo(Path(made), minutes, speed) as (up, store, address),
    ):
        found.get(address)
        head("s", "windows", "on the page", "heap, MB", "nodes", "tab, MB", "monitor, MB", "server, MB", "load")
        begin = time.monotonic()
        while (seconds := time.monotonic() - begin) <= 60 * minutes:
            windows = len(WindowLog(store).committed())
            heap, nodes, shown = tab(found)
            sizes = (
                megabytes(found.service.process.pid, "--type=renderer"),
                megabytes(up, "monitor"),
                megabytes(up, "serve"),
            )
            row(round(seconds), windows, shown, heap, nodes, *map(round, sizes), f"{os.getloadavg()[0]:.0f}")
            time.sleep(EVERY)


if __name__ == "__main__":
    app()
