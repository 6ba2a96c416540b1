"""What the same change costs in stores of any size: CPU, bytes and memory, as one table and one picture.

    OMP_NUM_THREADS=1 python -m benchmarks.change rows                    # what can be measured, and what is
    OMP_NUM_THREADS=1 python -m benchmarks.change run                     # what is missing; 23 GB of disk, 10 of memory
    OMP_NUM_THREADS=1 python -m benchmarks.change run --row age-1000 --row takes-200000      # these, once more
    python -m benchmarks.change draw                                      # table and picture of what is saved

Each row is one size of one part, measured by the part's own benchmark in a process of its own, and saved at once. CPU
is user and system time. The last column divides by the smallest store of the part: work that follows the change stays
below 1.5, work that follows the store grows with it (the dashed line).
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.harness import command_line, head, plotted, printed, row

app = command_line(__doc__)
FLAT: Final = 1.5
USERS: Final = (100_000, 1_000_000, 5_000_000, 20_000_000)
ITEMS: Final = (200_000, 2_000_000)
WINDOWS: Final = (10, 1_000, 10_000)
SHARES: Final = (0.001, 0.01, 0.1)
Results = Annotated[Path, typer.Option(help="where the figures are saved")]
SAVED: Final = Path("docs/change.json")


@dataclass(frozen=True)
class Cost:
    """What one change costs: CPU seconds, and, where a part measures them, megabytes written, of memory and mapped."""

    part: str
    stored: int
    cpu: float
    written: float | None = None
    memory: float | None = None
    mapped: float | None = None


def output(module: str, *options: object) -> str:
    """Run a benchmark; return what it prints. Raises `subprocess.CalledProcessError` if it fails."""
    print(f"benchmarks.{module}", *options, file=sys.stderr, flush=True)
    return printed(f"benchmarks.{module}", *options)


def cells(table: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table by column."""
    names, _, *found = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    return [dict(zip(names, [cell.replace(",", "") for cell in one], strict=True)) for one in found]


def histories(users: int) -> Iterator[Cost]:
    """Yield a commit, from the disk and from memory, and look-ups."""
    [found] = cells(output("histories", "run", "--users", users))
    cold, warm = map(float, found["commit CPU s"].split(" / "))
    sizes = [float(found[name]) for name in ("written MB", "own MB", "mapped MB")]
    yield Cost("histories, commit, from the disk", users, cold, *sizes)
    yield Cost("histories, commit, from memory", users, warm)
    yield Cost("histories, 64 look-ups", users, 64e-6 * float(found["of 64, us each"].partition(" / ")[0]))


def trainer(items: int) -> Iterator[Cost]:
    """Yield what a window costs the trainer beside its steps."""
    [found] = cells(output("states", "--items", items))
    yield Cost("item table", items, float(found["look-up, s"]) + float(found["admission, eviction, s"]))
    yield Cost("frequencies", items, float(found["frequencies, s"]))
    yield Cost("checkpoint", items, *(float(found[n]) for n in ("checkpoint, s", "written, MB", "memory, MB")))


def exports(items: int) -> Iterator[Cost]:
    """Yield exports, by the number of items that moved, without what the gate's queries cost, and these."""
    gates = []
    for found in cells(output("publishing", "exports", "--items", items, *(f"--share={share}" for share in SHARES))):
        moved = round(items * float(found["changed"].rstrip("%")) / 100)
        seconds, gate, written, memory = (
            float(found[name]) for name in ("export CPU s", "of it the gate", "written MB", "memory MB")
        )
        yield Cost(f"export of {moved:,} moved items, without the gate", items, seconds - gate, written, memory)
        gates.append(gate)
    yield Cost("export, the gate", items, sum(gates) / len(gates))


def takes(items: int) -> Iterator[Cost]:
    """Yield what a server pays for a delta, either way."""
    for found in cells(output("publishing", "takes", "--items", items)):
        part = f"server takes a delta ({found['how']})"
        yield Cost(part, items, float(found["CPU, s"]), memory=float(found["memory, MB"]))


def server(users: int) -> Iterator[Cost]:
    """Yield the start of a server."""
    [found] = cells(output("serving", "start", "--users", users))
    sizes = [1.048576 * float(found[name]) for name in ("own memory, MiB", "mapped, MiB")]
    yield Cost("server, start", users, float(found["CPU, s"]), None, *sizes)


def age(windows: int) -> Iterator[Cost]:
    """Yield runs of ten events on a store of any age."""
    table = cells(output("store_age", "run", "--windows", windows))
    costs = {found["cost"]: float(found[f"{windows} windows"]) for found in table}
    yield Cost("store of so many windows, a run", windows, costs["run own process s"])
    yield Cost("the same, following", windows, costs["run following s"])


def forget_windows(windows: int) -> Iterator[Cost]:
    """Yield what it costs to forget somebody of one window, or of all."""
    for found in cells(output("store_age", "forget", "--windows", windows)):
        part = f"forget a user of {found['user of']} of so many windows"
        yield Cost(part, windows, *(float(found[name]) for name in ("CPU s", "written MB", "memory MB")))


def forget_users(users: int) -> Iterator[Cost]:
    """Yield what it costs to forget one of so many users."""
    [found] = cells(output("store_age", "forget-user", "--users", users))
    sizes = [float(found[name]) for name in ("CPU s", "written MB", "memory MB")]
    yield Cost("forget one of so many users", users, *sizes)


ROWS: Final[dict[str, Callable[[], Iterator[Cost]]]] = {
    f"{name}-{size}": lambda part=part, size=size: part(size)  # type: ignore[misc]
    for name, part, sizes in (
        ("histories", histories, USERS),
        ("trainer", trainer, ITEMS),
        ("exports", exports, ITEMS),
        ("takes", takes, ITEMS),
        ("server", server, USERS),
        ("age", age, WINDOWS),
        ("forget-windows", forget_windows, WINDOWS),
        ("forget-users", forget_users, USERS[:3]),
    )
    for size in sizes
}


def saved(file: Path) -> dict[str, dict[str, Any]]:
    """Return what is saved, by row: the wall seconds that measuring took, and the costs."""
    kept: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    return kept


def by_part(file: Path) -> dict[str, list[Cost]]:
    """Return the saved costs of each part, smallest store first."""
    kept, found = saved(file), defaultdict[str, list[Cost]](list)
    for name in ROWS:
        for cost in kept.get(name, {"costs": []})["costs"]:
            found[cost["part"]].append(Cost(**cost))
    return found


@app.command("rows")
def list_rows(results: Results = SAVED) -> None:
    """Print the rows, and how long each took."""
    kept = saved(results)
    head("row", "measured in, s")
    for name in ROWS:
        row(name, f"{kept[name]['seconds']:.0f}" if name in kept else "-")


@app.command()
def run(
    rows: Annotated[list[str] | None, typer.Option("--row", help="measured again; may be repeated")] = None,
    results: Results = SAVED,
) -> None:
    """Measure rows, by default those that are not saved, and save each at once."""
    if unknown := set(rows or ()) - ROWS.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: `rows` lists what there is")
    for name in rows or [name for name in ROWS if name not in saved(results)]:
        started = time.monotonic()
        costs = [asdict(cost) for cost in ROWS[name]()]
        kept = saved(results) | {name: {"seconds": round(time.monotonic() - started), "costs": costs}}
        results.write_text(json.dumps({one: kept[one] for one in ROWS if one in kept}, indent=1) + "\n")


@app.command("draw")
def draw_all(
    results: Results = SAVED,
    picture: Annotated[Path, typer.Option(help="where the picture goes")] = Path("docs/images/change.png"),
) -> None:
    """Print the table of what is saved, and draw the picture."""
    found = by_part(results)
    print_table(found)
    draw({part: costs for part, costs in found.items() if len(costs) > 1}, picture)


def print_table(found: dict[str, list[Cost]]) -> None:
    """Print a row for each cost."""
    head("part", "stored", "CPU s", "written MB", "own MB", "mapped MB", "CPU / smallest")
    for part, costs in found.items():
        for cost in costs:
            values = (cost.cpu, cost.written, cost.memory, cost.mapped)
            texts = ["-" if value is None else f"{value:.3g}" for value in values]
            row(part, f"{cost.stored:,}", *texts, f"{cost.cpu / costs[0].cpu:.2f}")


def draw(found: dict[str, list[Cost]], picture: Path) -> None:
    """Plot how the cost of the same change grows with the store, a line for each part."""
    largest = max((cost.stored / costs[0].stored for costs in found.values() for cost in costs), default=1)
    with plotted(picture, 1, (9, 4.8)) as axes:
        for number, (part, costs) in enumerate(found.items()):
            sizes = [cost.stored / costs[0].stored for cost in costs]
            growth = [cost.cpu / costs[0].cpu for cost in costs]
            # There are ten colours.
            style, colour = "os"[number // 10] + "-", f"C{number % 10}"
            axes.plot(sizes, growth, style, label=part, markersize=4, color=colour)
        axes.plot([1, largest], [1, largest], "k--", linewidth=1, label="if all that is stored were rewritten")
        axes.axhspan(1 / FLAT, FLAT, color="0.9", zorder=0)
        axes.set(xscale="log", yscale="log", ylim=(0.3, 100), title="What the same change costs as the store grows")
        axes.set(xlabel="stored, as a multiple of the smallest store", ylabel="CPU of the same change / smallest store")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


if __name__ == "__main__":
    app()
