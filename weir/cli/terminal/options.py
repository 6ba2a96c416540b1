"""Options and arguments that several commands share."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer

from weir.errors import UsageError
from weir.session import Session, open_session

__all__ = [
    "AGES",
    "Assign",
    "ConfigFile",
    "JsonOutput",
    "LogFiles",
    "StoreOptions",
    "Target",
    "Variant",
    "Wanted",
    "log_files",
    "seconds_of",
]

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="WEIR_CONFIG",
        help="YAML file of settings; see `weir config show`.",
        show_default="none",
    ),
]
Assign = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one setting, such as trainer.batch_size=256; may be repeated.",
        show_default="none",
    ),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="HOST:PORT", help="Server to query.", show_default="serving.host:serving.port"),
]
Variant = Annotated[
    str | None,
    typer.Option(
        "--variant", metavar="NAME", help="The variant of trainer.variants that is meant.", show_default="main"
    ),
]
Wanted = Annotated[int, typer.Option("--k", "-k", min=1, max=1000, help="Number of items to return.")]

AGES: Final = "30d, 12h, 90m, 60s"
"""Examples of an age or duration, for help texts."""

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(text: str, option: str) -> float:
    """Return the seconds that a text such as 30d or 12h means; raises `UsageError`, which names the `option`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise UsageError(f"{option} is {text!r}, but must be a number and s, m, h or d, such as 30d or 12h")
    return float(found[1]) * _SECONDS[found[2]]


@dataclass(frozen=True)
class StoreOptions:
    """The options of every command that uses a store: its place, and the sources of settings."""

    config: ConfigFile = None
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "-s",
            help="Folder of windows and bundles: a path or fsspec URL. [env: WEIR_STORE]",
            show_default="weir-data",
        ),
    ] = None
    assign: Assign = None

    def open(self, flags: Mapping[str, Any] | None = None, **ways: Any) -> Session:
        """Return the session of the command; `flags` and `ways` are arguments of `open_session`."""
        return open_session(self.config, self.store, self.assign, flags, **ways)


# ruff: noqa: PLC0415 - imports wait until a command runs


@dataclass(frozen=True)
class LogFiles:
    """The `path` of a log's files; `newest_rows` is the number of rows in them if they are only the log's end."""

    path: str
    newest_rows: int | None = None


@contextmanager
def log_files(session: Session, log: str, newest: int | None = None) -> Iterator[LogFiles]:
    """Context manager: yield the files of a log, or files with a copy of a topic's messages.

    The copy has all present messages or, if `newest` is given, about as many of the newest ones.

    Raises the errors of `weir.pipelines.sources.kafka.consume.copy_topic`.
    """
    from weir.readers import is_topic

    if not is_topic(log):
        yield LogFiles(log)
        return
    from weir.cli.terminal.output import PLAIN_SECONDS, Bar
    from weir.pipelines.kafka_config import Topic
    from weir.pipelines.sources.kafka.consume import copy_topic

    config = session.settings.pipeline.model_copy(update={"log": log})
    with TemporaryDirectory(prefix="weir-topic-") as made:
        folder = Path(made) / Topic.parse(log).name
        folder.mkdir()
        with Bar(session.notes, f"copy {log}", plain_seconds=PLAIN_SECONDS) as bar:
            copied = copy_topic(
                config, folder, newest, lambda done, total: bar.show(done, total, f"{done:,} of {total:,} messages")
            )
        yield LogFiles(str(folder), None if copied.is_whole else copied.rows)
