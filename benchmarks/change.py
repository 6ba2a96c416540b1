"""What the same change costs in stores of any size: CPU, bytes and memory, as one table and one picture.

    OMP_NUM_THREADS=1 python -m benchmarks.change                  # an hour on one core; 21 GB of disk, 12 GB of memory
    OMP_NUM_THREADS=1 python -m benchmarks.change --scale 0.1      # tenths of all stores: ten minutes

Runs the benchmarks of the parts, each in a process of its own, and joins their tables. What changes stays the same
while what is stored grows. CPU is user and system time. The last column divides by the smallest store of the same part:
work that follows change stays near 1, at most 1.5; work that follows the store grows with it (the dashed line). A run
that was interrupted goes on after the last part that it finished: ``change.json`` holds the figures; remove it to
measure all again.
"""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.harness import command_line, head, row

app = command_line(__doc__)
FLAT: Final = 1.5
USERS: Final = (100_000, 1_000_000, 5_000_000, 20_000_000)
ITEMS: Final = (200_000, 2_000_000)
WINDOWS: Final = (10, 1_000, 10_000)
MOVED: Final = 2_000


@dataclass(frozen=True)
class Cost:
    """What one change costs: CPU seconds, and, where a part measures them, megabytes written and of memory."""

    part: str
    stored: int
    cpu: float
    written: float | None = None
    memory: float | None = None


def output(module: str, *options: object) -> str:
    """Run a benchmark; return what it prints. Raises `subprocess.CalledProcessError` if it fails."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, options)]
    print(" ".join(command[1:]), file=sys.stderr, flush=True)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table by column; of cells with several values the first."""
    names, _, *found = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    values = [[cell.partition(" / ")[0].replace(",", "") for cell in cells] for cells in found]
    return [dict(zip(names, cells, strict=True)) for cells in values]


def repeated(option: str, sizes: list[int]) -> list[object]:
    """Return an option once for each size."""
    return [part for size in sizes for part in (option, size)]


def histories(scaled: Callable[[tuple[int, ...]], list[int]]) -> Iterator[Cost]:
    """Yield commits and look-ups of histories."""
    for found in rows(output("histories", "run", *repeated("--users", scaled(USERS)))):
        users = int(found["users"])
        yield Cost("histories, commit", users, *(float(found[n]) for n in ("commit CPU s", "written MB", "memory MB")))
        yield Cost("histories, 64 look-ups", users, 64e-6 * float(found["of 64, us each"]))


def trainer(scaled: Callable[[tuple[int, ...]], list[int]]) -> Iterator[Cost]:
    """Yield what a window costs the trainer beside its steps."""
    for found in rows(output("window_costs", *repeated("--items", scaled(ITEMS)))):
        items = int(found["items"])
        yield Cost("item table", items, float(found["look-up, s"]) + float(found["admission, eviction, s"]))
        yield Cost("frequencies", items, float(found["frequencies, s"]))
        yield Cost("checkpoint", items, *(float(found[n]) for n in ("checkpoint, s", "written, MB", "memory, MB")))


def index(scaled: Callable[[tuple[int, ...]], list[int]]) -> Iterator[Cost]:
    """Yield exports of moved items, and what a server pays for them, either way."""
    for items in scaled(ITEMS):
        [found] = rows(output("deltas", "--items", items, "--share", MOVED / items, "--rounds", 4))
        yield Cost("bundle, export of a delta", items, float(found["export CPU s"]), float(found["written MB"]))
    for found in rows(output("takes", "run", *repeated("--items", scaled(ITEMS)), "--moved", MOVED)):
        part = f"bundle, server takes a delta ({found['how']})"
        yield Cost(part, int(found["items"]), float(found["CPU, s"]), memory=float(found["memory, MB"]))


def server(scaled: Callable[[tuple[int, ...]], list[int]]) -> Iterator[Cost]:
    """Yield starts of a server."""
    for found in rows(output("server_start", *repeated("--users", scaled(USERS)))):
        yield Cost("server, start", int(found["users"]), float(found["CPU, s"]), memory=float(found["own memory, MiB"]))


def age(scaled: Callable[[tuple[int, ...]], list[int]]) -> Iterator[Cost]:
    """Yield runs of ten events on stores of any age."""
    found: dict[str, dict[str, Any]] = json.loads(
        output("store_age", "--json", *repeated("--windows", scaled(WINDOWS)))
    )
    for windows, costs in found.items():
        yield Cost("store of so many windows, a run", int(windows), costs["run, own process, s"])
        yield Cost("the same, following", int(windows), costs["run, following, s"])


PARTS: Final = (histories, trainer, index, server, age)


def print_table(found: dict[str, list[Cost]]) -> None:
    """Print a row for each cost."""
    head("part", "stored", "CPU s", "written MB", "memory MB", "CPU / smallest")
    for part, costs in found.items():
        for cost in costs:
            cells = ["-" if value is None else f"{value:.4g}" for value in (cost.cpu, cost.written, cost.memory)]
            row(part, f"{cost.stored:,}", *cells, f"{cost.cpu / costs[0].cpu:.2f}")


def draw(found: dict[str, list[Cost]], picture: Path) -> None:
    """Plot how the cost of the same change grows with the store, a line for each part."""
    import matplotlib as mpl  # noqa: PLC0415  only this command needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    largest = 1.0
    for number, (part, costs) in enumerate(found.items()):
        sizes = [cost.stored / costs[0].stored for cost in costs]
        largest = max(largest, *sizes)
        growth = [cost.cpu / costs[0].cpu for cost in costs]
        # There are ten colours.
        style, colour = "os"[number // 10] + "-", f"C{number % 10}"
        axes.plot(sizes, growth, style, label=part, markersize=4, color=colour)
    axes.plot([1, largest], [1, largest], "k--", linewidth=1, label="if all that is stored were rewritten")
    axes.axhspan(1 / FLAT, FLAT, color="0.9", zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="stored, as a multiple of the smallest store", ylim=(0.3, 100))
    axes.set(ylabel="CPU of the same change / smallest store", title="What the same change costs as the store grows")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
    print(f"\n{picture}")


def measured(file: Path, scale: float) -> dict[str, list[Cost]]:
    """Return the costs of all parts, by name; those that the file holds are not measured again."""
    kept: dict[str, list[dict[str, Any]]] = json.loads(file.read_text()) if file.exists() else {}
    for part in PARTS:
        if part.__name__ not in kept:
            costs = part(lambda sizes: [max(1, round(scale * size)) for size in sizes])
            kept[part.__name__] = [asdict(cost) for cost in costs]
            file.write_text(json.dumps(kept, indent=1))
    found = defaultdict[str, list[Cost]](list)
    for cost in (Cost(**one) for part in PARTS for one in kept[part.__name__]):
        found[cost.part].append(cost)
    return found


@app.command(help=__doc__)
def main(
    scale: Annotated[float, typer.Option(min=0.1, help="factor on all that is stored")] = 1.0,
    results: Annotated[Path, typer.Option(help="where the figures go")] = Path("change.json"),
    picture: Annotated[Path, typer.Option(help="where the picture goes")] = Path("docs/images/change.png"),
) -> None:
    """Measure all parts; print and draw."""
    found = measured(results, scale)
    print_table(found)
    draw(found, picture)


if __name__ == "__main__":
    app()
