"""The progress of all stages, read from store and server, and its display by `weir up`."""

import contextlib
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from weir.config import Settings
from weir.contracts import CorruptArtefactError, EventClock, LogState, Store, WindowCounts
from weir.freshness import longest
from weir.pipelines.layout import identify_files
from weir.readers import Partition, discover
from weir.serving.client import Info, RetrievalClient, RetrievalError, by_user
from weir.serving.monitor.results import WindowRecall, mean_recall
from weir.store_status import StoreStatus
from weir.text import in_words, plain, visible

__all__ = ["Status", "StatusDisplay", "StatusReader", "covers"]

_KEPT: Final = 100
"""Newest commits that the first reading returns, and recalls that are kept."""
_QUIET_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Status:
    """State of all stages.

    `held` is the reason why the newest bundle is not served; `problems` maps parts to read errors. `longest_seconds` is
    the longest time from an event of a live log to an answer that uses it.
    """

    seconds: float
    replayed: float | None
    windows: int = 0
    counts: WindowCounts = field(default_factory=WindowCounts)
    dead: int = 0
    last_sequence: int = -1
    newest_bundle: str | None = None
    held: str | None = None
    current: str | None = None
    trained_sequence: int = -1
    served: Info | None = None
    recalls: tuple[WindowRecall, ...] = ()
    newest_event_age: float | None = None
    first_answer_seconds: float | None = None
    longest_seconds: float = 0.0
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """Rows of the log that are committed, refused, ignored or left out as duplicates."""
        return self.counts.events + self.counts.duplicates + self.counts.ignored + self.dead


@dataclass
class StatusReader:
    """Reads the status of one `weir up`.

    Parameters
    ----------
    store, settings
        The store and the settings of the stages.
    client
        Connection to the server.
    started
        Start of `weir up`, by `time.monotonic`.
    user
        User for the first query, whose time is reported; None: an unknown user.
    """

    store: Store
    settings: Settings
    client: RetrievalClient
    started: float
    user: str | None
    _first_answer: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._state = StoreStatus(self.store, _KEPT, has_variants=bool(self.settings.trainer.variants))

    @property
    def problems(self) -> dict[str, str]:
        """The parts that could not be read, with the reasons."""
        return {part: _sentence(part, error) for part, error in self._state.problems.items()}

    def read(self) -> Status:
        """Return the current status; never raises."""
        state = self._state
        state.refresh()
        unread: tuple[str | None, str | None] = (None, None)
        current, held = state.attempt("bundles/CURRENT", self._promoted, unread)
        served = state.attempt("server", self._served, None)
        log, newest, clock = state.log, state.newest, state.clock
        return Status(
            seconds=time.monotonic() - self.started,
            replayed=clock.replayed() if clock else None,
            windows=log.cursor.sequence,
            counts=log.counts,
            dead=log.dead,
            last_sequence=log.cursor.sequence - 1,
            newest_bundle=newest.version if newest else None,
            held=held,
            current=current,
            trained_sequence=newest.trained_sequence if newest else -1,
            served=served,
            recalls=state.recalls,
            newest_event_age=_newest_event_age(clock, served) if clock and served else None,
            first_answer_seconds=self._first_answer,
            longest_seconds=longest(self.settings),
            problems=self.problems,
        )

    def _promoted(self) -> tuple[str | None, str | None]:
        """Return the promoted version, and why the newest bundle is not promoted."""
        return self._current(), self._state.bundles.held(self._state.newest)

    def _current(self) -> str | None:
        bundles = self._state.bundles
        version = bundles.current()
        # Between the two readings another bundle may be promoted and this one retired.
        if version is None or version in bundles.versions() or version != bundles.current():
            return version
        raise ValueError(f"{bundles.store.path('bundles/CURRENT')}: names {version!r}, which is not a bundle")

    def _served(self) -> Info | None:
        try:
            info = self.client.info()
            if self._first_answer is None:
                self.client.retrieve([by_user(self.user or "nobody", 10)], probe=True)
                self._first_answer = time.monotonic() - self.started
        except RetrievalError:
            return None
        return info

    def is_settled(self, status: Status) -> bool:
        """Return whether the whole log is committed, trained on, served and measured; never raises."""
        return self._state.attempt("log", lambda: self._is_settled(status), otherwise=False)

    def _is_settled(self, status: Status) -> bool:
        last = status.last_sequence
        if last < 0 or status.trained_sequence < last or status.served is None:
            return False
        if status.served.bundle_version != status.current or not self.is_all_committed():
            return False
        return any(recall.sequence == last for recall in status.recalls)

    def is_all_committed(self) -> bool:
        """Return whether the commits read last account for the whole log.

        Segments that hold only duplicates are in no manifest: then a long time without commits has to be enough.
        """
        log = self._state.log
        return time.time() - log.committed_at > _QUIET_SECONDS or covers(log, discover(self.settings.pipeline.log))


def covers(log: LogState, partitions: Collection[Partition]) -> bool:
    """Return whether the commits account for all rows of these partitions, at their current size."""
    known = log.sources
    found = identify_files(partitions, known)
    return len(found) == len(partitions) and all(
        part.key in known and known[part.key].is_done and known[part.key].size == part.size for part in found
    )


def _newest_event_age(clock: EventClock, served: Info) -> float:
    """Return the age of the newest served event, in seconds."""
    return time.time() - clock.wall_time(round(1000 * served.max_event_time))


def _sentence(part: str, error: Exception) -> str:
    """Return an error message with the file's name, or with the part if the error names no file."""
    text = str(error) or type(error).__name__
    return text if part in text or isinstance(error, OSError | CorruptArtefactError) else f"{part}: {text}"


_PLAIN_SECONDS: Final = 10.0
_K: Final = 20
_GONE: Final = (OSError, SystemExit)
"""Errors of a closed terminal or pipe (rich exits then), which must not end the processes."""


class StatusDisplay:
    """Shows the status and important log lines of the processes on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._printed = -_PLAIN_SECONDS
        self._problems: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the live table; plain lines can still be printed."""
        if self._live:
            self._live.stop()

    def say(self, name: str, line: str) -> None:
        """Print a line with the name of its process in front."""
        text = Text(f"{name:>8} | ", style="dim")
        text.append(visible(line), style="default")
        with contextlib.suppress(*_GONE):
            self._console.print(text, soft_wrap=True)

    def show(self, status: Status) -> None:
        """Show the newest status; report each new read problem once."""
        for part, problem in status.problems.items():
            if self._problems.get(part) != problem:
                self.say("weir", f"cannot read: {problem}")
        self._problems = status.problems
        if self._live:
            with contextlib.suppress(*_GONE):
                self._live.update(_panel(status))
        elif time.monotonic() - self._printed >= _PLAIN_SECONDS:
            self._printed = time.monotonic()
            facts = "; ".join(f"{name}: {value}" for name, value in _facts(status))
            self.say("weir", f"{status.seconds:.0f} s; {facts}")


def _panel(status: Status) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2))
    if status.replayed is not None:
        table.add_row(Text("replay", style="bold"), ProgressBar(total=1.0, completed=status.replayed, width=60))
    for name, value in _facts(status):
        table.add_row(Text(name, style="bold"), plain(value))
    return Group(Text(f"weir up, {status.seconds:.0f} s", style="bold cyan"), table)


def _facts(status: Status) -> list[tuple[str, str]]:
    replayed = "" if status.replayed is None else f", {status.replayed:.0%} of the replay done"
    served = status.served
    age = "" if status.newest_event_age is None else f", newest event {in_words(status.newest_event_age)} old"
    counts = status.counts
    counted = f"{status.dead} dead, {counts.duplicates:,} duplicates, {counts.late:,} late"
    held = [("newest bundle", status.held)] if status.held else []
    unread = [("unreadable", ", ".join(status.problems))] if status.problems else []
    return [
        ("log", f"{counts.events:,} events in {status.windows} panes, {counted}{replayed}"),
        ("trained", f"{status.trained_sequence + 1} panes"),
        (
            "served",
            f"{served.bundle_version} with {served.items:,} items{age}"
            if served
            else f"nothing yet: waiting for {_awaited(status)}",
        ),
        ("recall", _recalls(status)),
        *held,
        *unread,
    ]


def _awaited(status: Status) -> str:
    """Return the next step until a bundle is served."""
    if status.windows == 0:
        first = f"the first events, which are answered after {in_words(status.longest_seconds)} at most"
        return first if status.replayed is None else "the first window to end"
    if status.trained_sequence < 0:
        return "the trainer to make the first bundle"
    return "the server to load the first bundle"


def _recalls(status: Status) -> str:
    values = {kind: mean_recall(status.recalls, kind, _K) for kind in ("model", "served", "index", "popularity")}
    known = [f"{kind} {value:.3f}" for kind, value in values.items() if value is not None]
    return f"@{_K} {', '.join(known)}" if known else "not measured yet"
