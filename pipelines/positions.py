"""What has been read and counted, derived from the manifests of committed windows and from nothing else.

A row at (partition, position) of window w has been counted if, and only if, a committed pane of w lists the
partition with `stop` above the position. See docs/windows.md for why.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from contracts import SourceSpan, WindowManifest
from pipelines.blocks import PartitionProgress, Progress
from pipelines.sources import Partition

__all__ = ["Committed", "Run", "Seen", "seen_partitions"]

END_OF_TIME = 1 << 62


@dataclass(frozen=True)
class Committed:
    """The committed windows as the transforms need them; windows by their start in milliseconds."""

    counted: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Window -> partition -> position below which all rows of the window have been counted."""
    panes: Mapping[int, int] = field(default_factory=dict)
    """Window -> committed panes, which is the number of the next."""
    max_event_ms: int = -1
    last_sequence: int = -1

    @classmethod
    def of(cls, manifests: Iterable[WindowManifest], partitions: Collection[str]) -> "Committed":
        """Read the manifests of all commits, as far as the given partitions are concerned."""
        counted: dict[int, dict[str, int]] = {}
        panes: dict[int, int] = {}
        newest = last = -1
        for manifest in manifests:
            window = counted.setdefault(manifest.start_ms, {})
            for key in manifest.sources.keys() & partitions:
                window[key] = max(manifest.sources[key].stop, window.get(key, 0))
            panes[manifest.start_ms] = max(manifest.pane + 1, panes.get(manifest.start_ms, 0))
            newest, last = max(newest, manifest.max_event_ms), max(last, manifest.sequence)
        return cls(counted, panes, newest, last)


@dataclass(frozen=True)
class Seen:
    """How far a partition has been read: all rows below `resume` have been counted; `size` as of then."""

    resume: int
    stop: int
    size: int
    dead: int
    was_cut: bool = False
    """Whether the run that read it was killed between two commits."""

    @property
    def is_done(self) -> bool:
        """Whether nothing below `stop` is left to count."""
        return self.resume >= self.stop and not self.was_cut


def seen_partitions(manifests: Iterable[WindowManifest]) -> dict[str, Seen]:
    """Return the partitions that runs have read.

    The last run that lists a partition speaks for it: where that run was completed, all that was left open
    begins at `resume`; where it was killed between two commits, it is as if it had not begun.
    """
    last: dict[str, WindowManifest] = {}
    completed: set[int] = set()
    for manifest in sorted(manifests, key=lambda manifest: manifest.sequence):
        last |= dict.fromkeys(manifest.sources, manifest)
        if manifest.last_of_run:
            completed.add(manifest.run)
    found: dict[str, Seen] = {}
    for key, manifest in last.items():
        span = manifest.sources[key]
        was_cut = manifest.run not in completed
        resume = min(span.start, span.resume) if was_cut else span.resume
        found[key] = Seen(resume, span.stop, span.size, span.dead, was_cut)
    return found


@dataclass(frozen=True)
class Run:
    """One pipeline run: what has been committed before, what it reads, and which windows it closes.

    With `flush` the input counts as complete and every window is committed; else a window stays open until the
    newest event is `lateness_ms` past its end.
    """

    committed: Committed
    partitions: Mapping[str, Partition]
    starts: Mapping[str, int]
    seen: Mapping[str, Seen]
    dead_before: Mapping[str, int]
    window_ms: int
    lateness_ms: int
    flush: bool

    def watermark_ms(self, progress: Progress) -> int:
        """Return the event time up to which the input counts as complete."""
        if self.flush:
            return END_OF_TIME
        return max(self.committed.max_event_ms, progress.max_event_ms) - self.lateness_ms

    def sources(self, progress: Progress) -> dict[str, SourceSpan]:
        """Return how far each partition has been read, as every manifest of the run says."""
        watermark = self.watermark_ms(progress)
        return {key: self._span(key, seen, watermark) for key, seen in sorted(progress.partitions.items())}

    def _span(self, key: str, progress: PartitionProgress, watermark: int) -> SourceSpan:
        stop = max(progress.stop, self.seen[key].stop if key in self.seen else 0)
        still_open = (at for window, at in progress.lowest.items() if window + self.window_ms > watermark)
        return SourceSpan(
            start=self.starts[key],
            stop=stop,
            resume=min(still_open, default=stop),
            size=self.partitions[key].size,
            dead=self.dead_before.get(key, 0) + progress.dead,
        )
