"""The command-line options of `weir up`; without heavy imports, so that help appears at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["UpOptions"]


@dataclass(frozen=True)
class UpOptions:
    """Options of `weir up`: what to run, what to replay, and when to end."""

    demo: Annotated[bool, typer.Option("--demo", help="Replay a generated log (or --log), with small settings.")] = (
        False
    )
    once: Annotated[
        bool, typer.Option("--once", help="Stop when the replay has been trained on, with a tour and a summary.")
    ] = False
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            "-l",
            help="Replay this finished log: JSON Lines, CSV, TSV (each also .gz) or Parquet. Or follow a topic: "
            "kafka://host:port/topic.",
            show_default="none",
        ),
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove an earlier replay from the store first, never anything else.")
    ] = False
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1, help="Wall-clock duration of a replay, in seconds.", show_default="120; less below 12,000 rows"
        ),
    ] = None
    ranks: Annotated[int, typer.Option(min=1, help="Number of training processes.")] = 2
    port_offset: Annotated[int, typer.Option(min=0, help="Added to every port, to run beside another `weir up`.")] = 0
    timeout: Annotated[float, typer.Option(min=1, help="With --once: fail after this many seconds.")] = 1800.0

    @property
    def topic(self) -> str | None:
        """The Kafka topic in `log`; None if it is a file."""
        from weir.readers import topic_of  # noqa: PLC0415 - help needs none of it

        return None if self.log is None else topic_of(self.log)
