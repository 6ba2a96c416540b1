"""``weir bench step``: where the time of a training step goes, on the windows of a store."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.tables import print_table
from weir.errors import CommandError
from weir.text import plain

if TYPE_CHECKING:
    from weir.trainer.stream.cost import StepCost

__all__ = ["step"]

_PARTS: Final = {
    "draw": "draw negatives",
    "rows": "distinct rows of the table",
    "hits": "accidental hits",
    "tower": "look-up and tower, forward",
    "loss": "loss and its gradient",
    "backward": "backward of the tower and the look-up",
    "sum": "sum over ranks",
    "update": "optimisers",
}


def step(
    *,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Examples per step; may be repeated.", show_default="trainer.batch_size"),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps that count, at most.")] = 20,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Train a fresh model on the newest windows, and print what a step spends where, per example.

    Beside it are the user tower alone, with its look-up, and the three matrix products of the loss (logits and their
    two gradients), which no step can do without. Times are CPU time, or wall time on a GPU. Nothing is written.
    """
    session = options.open()
    from weir.cli.window_facts import no_window
    from weir.contracts import WindowLog
    from weir.trainer.stream.cost import measure

    config = session.settings.trainer
    if not WindowLog(session.store).newest(1):
        raise CommandError(no_window(session.store, ""))
    costs = [
        measure(WindowLog(session.store), config.model_copy(update={"batch_size": size}), steps)
        for size in batch or [config.batch_size]
    ]
    if json:
        session.print_json({"steps": [asdict(cost) for cost in costs]})
        return
    kinds = f"{config.tower.kind}, {config.loss.kind}, {costs[0].items:,} items"
    session.out.print(plain(f"microseconds per example by batch size: {kinds}"), soft_wrap=True)
    print_table(
        session,
        "",
        ["part", *(f"{cost.batch_size:,}" for cost in costs)],
        _lines(costs),
    )


def _lines(costs: list["StepCost"]) -> list[list[str]]:
    def line(name: str, values: list[float], form: str = ".1f") -> list[str]:
        return [name, *(f"{value:{form}}" for value in values)]

    parts = [line(_PARTS[part], [cost.parts[part] for cost in costs]) for part in costs[0].parts]
    return [
        *parts,
        line("whole step", [cost.step for cost in costs]),
        line("tower alone", [cost.tower for cost in costs]),
        line("three products alone", [cost.products for cost in costs]),
        line("step / (tower + products)", [cost.ratio for cost in costs], ".2f"),
        line("steps measured", [cost.steps for cost in costs], "d"),
    ]
