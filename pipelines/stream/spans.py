"""How far partitions are read after the window of an engine: what its slices add to what the commits say.

See docs/windows.md, "Under an engine", for why this holds whatever other writers have committed meanwhile.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from contracts import SourceSpan
from contracts.source_span import UNLISTED
from pipelines.progress import LettersWritten
from pipelines.stream.slices import Slice, Tile

__all__ = ["Coverage", "OutOfOrderError", "with_letters"]


class OutOfOrderError(Exception):
    """The engine brought a window before one that the commits need first; it has to bring them again."""


@dataclass(frozen=True)
class Coverage:
    """What the slices of one window say of a partition: its tiles in order, and the position up to which they reach.

    Of windows up to this one, every row below `reach` came with it or before.
    """

    partition: str
    tiles: tuple[Tile, ...]
    reach: int

    @classmethod
    def of(cls, slices: Iterable[Slice]) -> dict[str, "Coverage"]:
        """Return the coverage of each partition; raises `OutOfOrderError` for a hole between two tiles."""
        found = defaultdict[str, list[Slice]](list)
        for one in slices:
            found[one.partition].append(one)
        return {key: cls._of(key, ones) for key, ones in found.items()}

    @classmethod
    def _of(cls, key: str, slices: list[Slice]) -> "Coverage":
        tiles = sorted((one.tile for one in slices if one.tile), key=lambda tile: (tile.start, tile.stop))
        for before, tile in pairwise(tiles):
            if tile.start != before.stop:
                raise OutOfOrderError(f"{key}: positions [{tile.start}, {tile.stop}) came after {before.stop}")
        return cls(key, tuple(tiles), max(one.stop for one in slices))

    def after(
        self, before: SourceSpan, counted: Mapping[int, int], start_ms: int, panes: Collection[int]
    ) -> SourceSpan:
        """Return how far the partition is read after the window that starts at `start_ms`.

        `before` and `counted` (window start in ms -> position) are what the commits say, `panes` the starts (ms) of
        the windows that get a pane. Raises `OutOfOrderError`.
        """
        stop = max([before.stop, *(tile.stop for tile in self.tiles)])
        if self.reach > stop or (self.tiles and self.tiles[0].start > before.stop):
            first = self.tiles[0].start if self.tiles else self.reach
            raise OutOfOrderError(f"{self.partition}: positions from {first} on came, the commits end at {before.stop}")
        waiting = _waiting(before, counted, self, start_ms)
        return before.model_copy(
            update={
                "start": before.resume,
                "stop": stop,
                "resume": min(waiting.values(), default=stop),
                "size": max([before.size, *(tile.size for tile in self.tiles)]),
                "skipped": before.skipped + sum(int((tile.skipped >= before.stop).sum()) for tile in self.tiles),
                "counted": dict.fromkeys(panes, self.reach) if self.reach < stop else {},
                "open": waiting,
            }
        )


def _waiting(before: SourceSpan, counted: Mapping[int, int], seen: Coverage, start_ms: int) -> dict[int, int]:
    """Return window start (ms) -> the lowest position at which a row of it may still wait (`SourceSpan.open`)."""
    found = dict(before.waiting)
    unlisted = found.pop(UNLISTED, before.stop)
    for at in [at for at in found if at <= start_ms]:
        found[at] = max(found[at], seen.reach)
    # Of positions below, it is known already which rows wait.
    known = min(before.stop, unlisted)
    for tile in seen.tiles:
        for at, position in tile.open.items():
            lowest = max(position, known, counted.get(at, 0))
            if lowest < tile.stop:
                found[at] = min(lowest, found.get(at, lowest))
    found = {at: position for at, position in found.items() if at > start_ms or position < before.stop}
    if seen.tiles and seen.tiles[0].start <= unlisted:
        unlisted = max(unlisted, seen.tiles[-1].stop)
    return found if unlisted >= before.stop else found | {UNLISTED: unlisted}


def with_letters(span: SourceSpan, new: Iterable[LettersWritten]) -> SourceSpan:
    """Return a span with the dead letters of its commit, without files that lie wholly below `resume`."""
    new = list(new)
    last = span.letters | {one.file.name: one.last for one in new}
    sums = span.letter_checksums | {one.file.name: one.file.checksum for one in new}
    reaching = {name: position for name, position in last.items() if position >= span.resume}
    return span.model_copy(
        update={
            "dead": span.dead + sum(one.file.rows or 0 for one in new),
            "letters": reaching,
            "letter_checksums": {name: sums[name] for name in reaching if name in sums},
            "inherited": tuple(one for one in span.inherited if max(one.counted.values()) > span.resume),
        }
    )
