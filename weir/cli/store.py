"""``weir verify`` and ``weir migrate``: the files of a store."""

# ruff: noqa: ARG001, PLC0415, PLR0917 - options are parameters; imports wait until a command runs

from typing import Annotated

import typer

from weir.cli.errors import CommandError
from weir.cli.options import Assign, ConfigFile, Debug, JsonOutput, StoreUrl
from weir.cli.session import open_session

__all__ = ["migrate", "verify"]


def verify(
    quick: Annotated[bool, typer.Option("--quick", help="Compare sizes only; read no data file.")] = False,
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """Check every file of a store against the commit or manifest that lists it.

    Exit status 1 if a file is damaged, missing or foreign (listed by nothing for more than an hour); each is named.
    Other processes may go on writing meanwhile.
    """
    from contracts.verification import verify as check
    from weir.cli.progress import Bar
    from weir.text import plain

    session = open_session(config, store, assign)
    if not session.store.exists(""):
        raise CommandError(f"{session.store.path('')}: there is no such store")
    with Bar(session.notes, "verify") as bar:
        report = check(session.store, quick=quick, progress=lambda done, total: bar.update(done, total, "files"))
    if json:
        facts = {"files": report.files, "bytes": report.bytes, "unchecked": report.unchecked, "quick": quick}
        session.print_json(facts | {"findings": [finding._asdict() for finding in report.findings]})
    else:
        for finding in report.findings:
            session.out.print(plain(f"{finding.kind}: {finding.name}: {finding.problem}"), soft_wrap=True)
        session.out.print(
            f"{report.files:,} files, {report.bytes / 1e6:,.1f} MB: {len(report.findings)} at fault; "
            f"{report.unchecked} more have nothing to be checked against",
            highlight=False,
        )
    if report.findings:
        raise typer.Exit(1)


def migrate(
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """Bring a store of an older format to the one that this version reads and writes.

    Stop all processes of the store first. Data files stay where they are. Checkpoints of format 1 are removed, as they
    hold pickled data: training starts again from the first window. Killed half-way, it is run again.
    """
    from contracts.migration import migrate as bring_up
    from weir.text import plain

    session = open_session(config, store, assign)
    if not session.store.exists(""):
        raise CommandError(f"{session.store.path('')}: there is no such store")
    panes = bring_up(session.store, session.settings.pipeline.user_shards)
    if json:
        session.print_json({"panes": panes})
        return
    done = f"{panes} panes are now in the commit log" if panes else "has the newest format already"
    session.out.print(plain(f"{session.store.path('')}: {done}; check it with `weir verify`"), soft_wrap=True)
