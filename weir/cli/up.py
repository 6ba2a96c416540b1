"""``weir up``: everything on one machine, supervised."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import typer

from weir.cli.options import JsonOutput, StoreOptions
from weir.errors import CommandError
from weir.session import open_session
from weir.up.options import UpOptions

__all__ = ["up"]


def up(*, wanted: UpOptions, options: StoreOptions, json: JsonOutput = False) -> None:
    """Run pipeline, trainer, server and monitor on this machine, restart those that die, and stop all together.

    Without --demo or --log FILE the stages follow the topic at --log, or the log at the setting pipeline.log. Ctrl-C
    stops everything gracefully, a second one at once. First the log is looked at, as `weir check` does. The output of
    each process is in STORE/logs/NAME.log.
    """
    from weir.contracts.locks import only_one
    from weir.up.prepare import prepare
    from weir.up.run import run_up

    store = open_session(options.config, options.store, options.assign, base={}).store
    with only_one(store, "up", "weir up"):
        launch = prepare(options.config, options.store, options.assign, wanted)
        summary = run_up(launch)
    if summary is None:
        raise typer.Exit(130 if wanted.once else 0)
    if json:
        launch.session.print_json(summary)
    if summary.failures:
        raise CommandError("the replay failed: " + "; ".join(summary.failures))
