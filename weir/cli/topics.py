"""A Kafka topic where a command reads a finished log: it is copied to files for as long as the command runs."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from weir.session import Session

__all__ = ["LogFiles", "log_files"]


@dataclass(frozen=True)
class LogFiles:
    """Where the files of a log are; `newest_rows` if they are only so many rows from its end, else None."""

    path: str
    newest_rows: int | None = None


@contextmanager
def log_files(session: Session, log: str, newest: int | None = None) -> Iterator[LogFiles]:
    """Yield the files of a log: itself, or a copy of what a topic has now, all of it or about `newest` messages.

    Raises what `weir.pipelines.kafka.copying.copy_topic` does.
    """
    from weir.readers import is_topic

    if not is_topic(log):
        yield LogFiles(log)
        return
    from weir.cli.progress import PLAIN_SECONDS, Bar
    from weir.pipelines.kafka.address import Topic
    from weir.pipelines.kafka.copying import copy_topic

    config = session.settings.pipeline.model_copy(update={"log": log})
    with TemporaryDirectory(prefix="weir-topic-") as made:
        folder = Path(made) / Topic.parse(log).name
        folder.mkdir()
        with Bar(session.notes, f"copy {log}", plain_seconds=PLAIN_SECONDS) as bar:
            copied = copy_topic(
                config, folder, newest, lambda done, total: bar.show(done, total, f"{done:,} of {total:,} messages")
            )
        yield LogFiles(str(folder), None if copied.is_whole else copied.rows)
