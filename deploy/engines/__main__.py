"""Kafka and Flink on this machine: ``python -m deploy.engines start|status|stop`` (docs/install.md)."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from deploy.engines.fetch import fetch, missing_tools
from deploy.engines.flink import job_manager, job_server, task_manager
from deploy.engines.kafka import broker
from deploy.engines.pool import worker_pool
from deploy.engines.processes import Service, start, stop
from deploy.engines.settings import EngineSettings
from weir.contracts import UserError

__all__ = ["app", "services"]

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


def services(settings: EngineSettings) -> list[Service]:
    """Return all engines, in the order in which they are started."""
    return [make(settings) for make in (broker, job_manager, task_manager, job_server, worker_pool)]


@app.command("fetch")
def fetch_jars(
    *, optional: Annotated[bool, typer.Option(help="Without Java and Maven say so and succeed.")] = False
) -> None:
    """Fetch the jars of Kafka, Flink and Beam's job server; what is there stays."""
    if optional and (missing := missing_tools()):
        typer.echo(f"engines: skipped, there is no {' and no '.join(missing)} to fetch Kafka and Flink with")
        return
    _explained(lambda: fetch(EngineSettings(), typer.echo))


@app.command("start")
def start_engines() -> None:
    """Start what does not run, and wait until all answer."""
    _explained(lambda: _start(EngineSettings()))


@app.command("stop")
def stop_engines() -> None:
    """Stop all engines, and with them all jobs. Topics stay."""
    _explained(lambda: _stop(EngineSettings()))


@app.command()
def status() -> None:
    """Show what runs; the exit status is 1 unless all engines answer."""
    found = [(service, service.processes()) for service in services(EngineSettings())]
    answers = [service.runs() and service.answers() for service, _ in found]
    for (service, pids), is_up in zip(found, answers, strict=True):
        state = "answers" if is_up else "does not answer" if pids else "does not run"
        typer.echo(f"{_line(service)} {state}{', processes ' + ' '.join(map(str, pids)) if pids else ''}")
    raise typer.Exit(not all(answers))


def _start(settings: EngineSettings) -> None:
    fetch(settings, typer.echo)
    wanted = services(settings)
    started = start(wanted, settings.start_seconds)
    for service in wanted:
        typer.echo(f"{_line(service)} {'started' if service in started else 'was running'}")
    typer.echo(f"logs: {settings.folder}/*.log")


def _stop(settings: EngineSettings) -> None:
    stopped = stop(services(settings))
    for service in stopped:
        typer.echo(f"{service.name} stopped")
    if not stopped:
        typer.echo("nothing was running")


def _line(service: Service) -> str:
    return f"{service.name:<12} {','.join(map(str, service.ports)) or '-':<12}"


def _explained(action: Callable[[], None]) -> None:
    try:
        action()
    except UserError as error:
        typer.echo(f"engines: {error}", err=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    app()
