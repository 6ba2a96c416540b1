"""``weir verify``, ``promote`` and ``replay-bundle``: check a store's files, choose the bundle served, reproduce it."""

import getpass
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.ranks import arguments_of, is_first_rank, run_in_ranks
from weir.cli.terminal.command import set_up_logging
from weir.cli.terminal.options import JsonOutput, StoreOptions, Variant
from weir.cli.terminal.output import print_table
from weir.errors import CommandError, UsageError
from weir.text import plain

if TYPE_CHECKING:
    from weir.contracts import BundleLog
    from weir.pipelines.maintenance.erasure_check import Sighting
    from weir.session import Session
    from weir.trainer.replay import Replay
    from weir.trainer.stream.progress import TrainProgress

__all__ = ["promote", "replay_bundle", "replay_worker", "verify"]

Version = Annotated[str, typer.Argument(metavar="VERSION", help="The bundle; `weir inspect bundles` lists them.")]


# ruff: noqa: PLC0415 - imports wait until a command runs


def verify(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Compare sizes only, without reading data files.")] = False,
    absent: Annotated[
        list[str] | None,
        typer.Option(
            "--absent",
            metavar="ID",
            help="Read every file, caches of this machine too, for a user who must not be there; may be repeated.",
            show_default="none",
        ),
    ] = None,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Check every file of a store against the commit or manifest that lists it.

    Names each file that is damaged, missing or foreign (unlisted for more than an hour), and each file that holds a
    user named by --absent; exit status 1 if there is one. Other processes may keep writing meanwhile.
    """
    from weir.cli.terminal.output import Bar
    from weir.contracts.verification import verify as check
    from weir.text import plain

    # Damaged settings are one of the findings.
    session = options.open() if absent else options.open(recorded={})
    if not session.store.exists(""):
        raise CommandError(f"{session.store.path('')}: there is no such store")
    with Bar(session.notes, "verify") as bar:
        report = check(session.store, quick=quick, progress=lambda done, total: bar.show(done, total, "files"))
    present = _present(session, absent or [])
    if json:
        facts: dict[str, Any] = {
            "files": report.files,
            "bytes": report.bytes,
            "unchecked": report.unchecked,
            "quick": quick,
        }
        facts |= {"findings": [finding._asdict() for finding in report.findings]}
        session.print_json(facts | ({"present": [one._asdict() for one in present]} if absent else {}))
    else:
        for finding in report.findings:
            session.out.print(plain(f"{finding.kind}: {finding.name}: {finding.problem}"), soft_wrap=True)
        session.out.print(
            f"{report.files:,} files, {report.bytes / 1e6:,.1f} MB: {len(report.findings)} at fault; "
            f"{report.unchecked} more have no checksum to compare with",
            highlight=False,
        )
        for one in present:
            session.out.print(plain(f"present: {one.name}: {one.what}"), soft_wrap=True)
        if absent:
            held = f"{len(present):,} files hold" if present else "no file holds"
            session.out.print(plain(f"{held} {', '.join(absent)}"), soft_wrap=True)
    if report.findings or present:
        raise typer.Exit(1)


def _present(session: "Session", absent: list[str]) -> "list[Sighting]":
    """Return the files of the store and of local caches that hold users who must be absent."""
    if not absent:
        return []
    from weir.cli.terminal.output import Bar
    from weir.contracts import read_format
    from weir.pipelines.maintenance.erased_files import Forgotten
    from weir.pipelines.maintenance.erasure_check import sightings

    found = read_format(session.store)
    pipeline, serving = session.settings.pipeline, session.settings.serving
    with Bar(session.notes, "absent") as bar:
        return sightings(
            session.store,
            Forgotten.of(absent, found.key_secret if found else ""),
            user_column=pipeline.columns.user_id,
            # Files of a local store are never copied.
            caches=(pipeline.cache, serving.cache) if session.store.local_path is None else (),
            progress=lambda done, total: bar.show(done, total, "files"),
        )


def promote(
    *,
    version: Annotated[
        str | None, typer.Argument(help="The bundle; `weir inspect bundles` lists them.", show_default=False)
    ] = None,
    why: Annotated[str, typer.Option(help="Reason, shown with the pin.", show_default=False)] = "",
    unpin: Annotated[
        bool, typer.Option("--unpin", help="Remove the pin: the trainer promotes its next bundle that passes the gate.")
    ] = False,
    variant: Variant = None,
    options: StoreOptions,
) -> None:
    """Serve this bundle whatever the gate decided: an older one, or one that was held back.

    The bundle is pinned: trainers keep exporting, but promote nothing until `weir promote --unpin`. `--variant NAME`
    alone serves the bundles of that variant to all from now on, whatever the comparison found; `main` names the plain
    settings.
    """
    if (version is not None) + unpin + (variant is not None and not unpin) != 1:
        raise UsageError(
            "name a VERSION to promote and pin it, or give --unpin to remove the pin (a variant's with --variant "
            "NAME), or --variant NAME alone to serve its bundles to all; one of the three"
        )
    session = options.open()
    from weir.contracts import Pin
    from weir.contracts.bundles.variants import MAIN, log_of, log_of_version

    if version is None:
        _unpin(log_of(session.store, variant or MAIN)) if unpin else _crown(session, str(variant), why)
        return
    log = log_of_version(session.store, version)
    try:
        log.set_pin(Pin(version=version, by=_operator(), at=time.time(), why=why))
    except (FileNotFoundError, ValueError):
        there = ", ".join(log.versions()) or "none"
        raise CommandError(f"{log.store.path('bundles')} holds no bundle {version}; there are: {there}") from None
    typer.echo(f"{version} is promoted and pinned until `weir promote --unpin`")


def _crown(session: "Session", variant: str, why: str) -> None:
    """Make a variant the champion, and print how it compares with the previous one."""
    from weir.contracts.bundles.variants import MAIN, MEASURES, Champion, Comparison, VariantError, crown

    names = (MAIN, *session.settings.trainer.variants)
    if variant not in names:
        raise VariantError(f"trainer.variants: there is no {variant}; allowed: {', '.join(names)}")
    champion = Champion.read(session.store).variant
    comparison = Comparison.between(session.store, champion, variant)
    known = [comparison.sentence(one) for one in MEASURES] if comparison else [f"it was not compared with {champion}"]
    if champion == variant:
        typer.echo(f"{variant} is served to all already")
        return
    crown(session.store, variant, _operator(), "; ".join([*([why] if why else []), *known]))
    for sentence in known:
        typer.echo(sentence)
    typer.echo(f"{variant} is served to all; `weir inspect variants` shows it")


def _unpin(log: "BundleLog") -> None:
    from weir.contracts import CorruptArtefactError

    try:
        pin = log.pin()
        was = "nothing was pinned" if pin is None else f"no longer {pin.sentence}"
    except CorruptArtefactError as error:
        was = f"the pin could not be read: {error}"
    log.lift_pin()
    typer.echo(f"{was}; the trainer promotes its next bundle that passes the gate")


def _operator() -> str:
    """Return who runs the command, as user@host; the user's number if it has no name, as in some containers."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


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
    from weir.contracts.bundles.variants import log_of_version
    from weir.trainer.replay import Replay, ReplayError, recipe_of

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
    from weir.cli.terminal.output import Bar
    from weir.trainer.replay import replay_bundle as run

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
