"""``weir verify`` and ``weir migrate``: the files of a store."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import Annotated

import typer

from weir.cli.options import JsonOutput, StoreOptions
from weir.errors import CommandError

__all__ = ["migrate", "verify"]


def verify(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Compare sizes only, without reading data files.")] = False,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Check every file of a store against the commit or manifest that lists it.

    Names each file that is damaged, missing or foreign (unlisted for more than an hour); exit status 1 if there is
    one. Other processes may keep writing meanwhile.
    """
    from contracts.verification import verify as check
    from weir.cli.progress import Bar
    from weir.text import plain

    session = options.open()
    if not session.store.exists(""):
        raise CommandError(f"{session.store.path('')}: there is no such store")
    with Bar(session.notes, "verify") as bar:
        report = check(session.store, quick=quick, progress=lambda done, total: bar.show(done, total, "files"))
    if json:
        facts = {"files": report.files, "bytes": report.bytes, "unchecked": report.unchecked, "quick": quick}
        session.print_json(facts | {"findings": [finding._asdict() for finding in report.findings]})
    else:
        for finding in report.findings:
            session.out.print(plain(f"{finding.kind}: {finding.name}: {finding.problem}"), soft_wrap=True)
        session.out.print(
            f"{report.files:,} files, {report.bytes / 1e6:,.1f} MB: {len(report.findings)} at fault; "
            f"{report.unchecked} more have no checksum to compare with",
            highlight=False,
        )
    if report.findings:
        raise typer.Exit(1)


def migrate(
    *,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Convert a store of an older format to the one that this version reads and writes.

    Stop all processes that use the store first. Data files stay in place. Checkpoints of format 1 are removed because
    they hold pickled data: training starts again from the first window. If the command is killed, run it again.
    """
    from contracts.migration import migrate as convert
    from weir.text import plain

    session = options.open()
    if not session.store.exists(""):
        raise CommandError(f"{session.store.path('')}: there is no such store")
    panes = convert(session.store, session.settings.pipeline.user_shards)
    if json:
        session.print_json({"panes": panes})
        return
    done = f"{panes} panes are now in the commit log" if panes else "has the newest format already"
    session.out.print(plain(f"{session.store.path('')}: {done}; check it with `weir verify`"), soft_wrap=True)
