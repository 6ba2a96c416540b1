"""``weir up``: everything on one machine, supervised."""

# ruff: noqa: ARG001, PLC0415, PLR0917 - options are parameters; imports wait until a command runs

from pathlib import Path
from typing import Annotated

import typer

from weir.cli.errors import fail
from weir.cli.options import Assign, ConfigFile, Debug, JsonOutput, StoreUrl

__all__ = ["up"]


def up(
    demo: Annotated[
        bool, typer.Option("--demo", help="Replay a generated log (or --log), with small settings.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="End by itself when the replay has been learnt, with a tour and a summary.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option("--log", "-l", help="Replay this finished log: JSON Lines (.gz) or Parquet.", show_default="none"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Wall-clock seconds that a replay takes.")] = 120.0,
    ranks: Annotated[int, typer.Option(min=1, help="Processes that train together.")] = 2,
    port_offset: Annotated[int, typer.Option(min=0, help="Added to every port, to run beside another `weir up`.")] = 0,
    timeout: Annotated[float, typer.Option(min=1, help="With --once: seconds after which it has failed.")] = 1800.0,
    config: ConfigFile = None,
    store: StoreUrl = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """Run pipeline, trainer, server and monitor on this machine, restart what dies, stop all together.

    Without --demo or --log the stages follow the log that pipeline.log names. Ctrl-C stops everything in good order,
    a second one at once. Output of each process: STORE/logs/NAME.log.
    """
    from weir.cli.prepare import UpOptions, prepare
    from weir.cli.run_up import run_up

    options = UpOptions(demo, once, log, seconds, ranks, port_offset, timeout)
    launch = prepare(config, store, assign, options)
    summary = run_up(launch)
    if summary is None:
        raise typer.Exit(130 if once else 0)
    if json:
        launch.session.print_json(summary)
    if summary.failures:
        fail("the demo failed: " + "; ".join(summary.failures))
