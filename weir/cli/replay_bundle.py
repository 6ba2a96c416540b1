"""``weir replay-bundle``: a bundle is made again from the windows, and compared."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.logs import set_up_logging
from weir.cli.options import JsonOutput, StoreOptions
from weir.cli.ranks import arguments_of, is_first_rank, run_in_ranks
from weir.cli.tables import print_table
from weir.errors import CommandError
from weir.text import plain

if TYPE_CHECKING:
    from weir.session import Session
    from weir.trainer.replay.bundle import Replay
    from weir.trainer.stream.progress import TrainProgress

__all__ = ["replay_bundle", "replay_worker"]

Version = Annotated[str, typer.Argument(metavar="VERSION", help="The bundle; `weir inspect bundles` lists them.")]


def replay_bundle(
    *,
    version: Version,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Train a bundle again from the windows, by the recipe in its manifest, and compare it bit for bit.

    Nothing is written to the store. It takes as long as training did. The exit status is 1 if anything differs.
    """
    session = options.open()
    set_up_logging(session.notes)
    from weir.contracts import CorruptArtefactError
    from weir.contracts.variants import log_of_version
    from weir.trainer.replay.bundle import Replay
    from weir.trainer.replay.retrained import ReplayError, recipe_of

    try:
        recipe = recipe_of(log_of_version(session.store, version).manifest(version))
    except FileNotFoundError:
        where = session.store.path("bundles")
        raise CommandError(f"{where} has no bundle {version}: `weir inspect bundles` lists them") from None
    except CorruptArtefactError as error:
        raise ReplayError.damaged(version, error) from error
    with tempfile.TemporaryDirectory(prefix="weir-replay-") as folder:
        result = Path(folder) / "result.json"
        if recipe.stretches[0].ranks == 1:
            replay_worker(version=version, result=result, options=options)
        else:
            given = arguments_of(options, session.settings.store)
            command = ["replay-worker", version, "--result", str(result), *given]
            run_in_ranks(recipe.stretches[0].ranks, 0, command)
        found = Replay.model_validate_json(result.read_text())
    if json:
        session.print_json(found)
    else:
        _show(session, found)
    if found.differences:
        raise typer.Exit(1)


def replay_worker(
    *,
    version: Version,
    result: Annotated[Path, typer.Option(help="Where the result goes.")],
    options: StoreOptions,
) -> None:
    """Run one rank of a replay."""
    is_first_rank()
    session = options.open()
    set_up_logging(session.notes)
    from weir.cli.progress import Bar
    from weir.trainer.replay.bundle import replay_bundle as run

    with Bar(session.notes, "replay") as bar:

        def report(progress: "TrainProgress") -> None:
            bar.show(progress.batch, progress.batches, f"window {progress.sequence} ({progress.window})")

        found = run(session.store, version, report)
    if found is not None:
        result.write_text(found.model_dump_json())


def _show(session: "Session", found: "Replay") -> None:
    rows = [["differs", one] for one in found.differences] or [
        ["same", f"{found.items:,} items and the tower, bit for bit"]
    ]
    rows += [["because", one] for one in found.reasons]
    title = f"{found.version}: {found.windows:,} windows, {found.steps:,} steps"
    print_table(session, title, ["", "what"], rows)
    if found.differences and not found.reasons:
        session.out.print(plain("nothing is known that explains it"))
