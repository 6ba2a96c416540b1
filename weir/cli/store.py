"""``weir verify`` and ``weir promote``: the files of a store, and which bundle is served."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import getpass
import os
import socket
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.options import JsonOutput, StoreOptions, Variant
from weir.errors import CommandError, UsageError

if TYPE_CHECKING:
    from weir.contracts import BundleLog
    from weir.pipelines.absence import Sighting
    from weir.session import Session

__all__ = ["promote", "verify"]


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

    Names each file that is damaged, missing or foreign (unlisted for more than an hour), and each that holds a user who
    must be absent; exit status 1 if there is one. Other processes may keep writing meanwhile.
    """
    from weir.cli.progress import Bar
    from weir.contracts.verification import verify as check
    from weir.text import plain

    # Damaged settings are a finding.
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
    """Return the files that hold users who must be absent."""
    if not absent:
        return []
    from weir.cli.progress import Bar
    from weir.contracts import read_format
    from weir.pipelines.absence import sightings
    from weir.pipelines.forgotten import Forgotten

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

    The bundle is pinned: trainers keep exporting, but nothing else is promoted until `weir promote --unpin`. With
    `--variant NAME` alone, that line is served to all from now on, whatever the comparison has found; `main` is that of
    the plain settings.
    """
    if (version is not None) + unpin + (variant is not None and not unpin) != 1:
        raise UsageError(
            "name a VERSION to promote and pin it, or give --unpin to remove the pin (a variant's with --variant "
            "NAME), or --variant NAME alone to serve its bundles to all; one of the three"
        )
    session = options.open()
    from weir.contracts import Pin
    from weir.contracts.variants import MAIN, log_of, log_of_version

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
    """Serve a line to all, and say what is known of how it compares."""
    from weir.contracts.comparison import MEASURES, Comparison
    from weir.contracts.variants import MAIN, Champion, VariantError, crown

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
    """Return who runs the command, as user@host; in a container the user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
