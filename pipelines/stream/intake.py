"""Intake: the slices of one window to the parts of a commit, by the transforms of a bounded run."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts import HistoryFile, HistoryFiles, Store, columns
from weir.pipelines.config import PipelineConfig
from weir.pipelines.key_owners import COLLISION, new_claims, of_others, owners
from weir.pipelines.positions import Run
from weir.pipelines.progress import LettersWritten, Progress
from weir.pipelines.run_commit import Made, WindowSketches
from weir.pipelines.stream.slices import Slice
from weir.pipelines.transforms.count import CountKeys
from weir.pipelines.transforms.dead_letters import WriteDeadLetters
from weir.pipelines.transforms.deduplicate import Deduplicate, ShardWindow
from weir.pipelines.transforms.exposure import AttachExposure
from weir.pipelines.transforms.histories import AttachHistories
from weir.pipelines.transforms.split import Keyed, Piece, before_retention, by_shard, without
from weir.pipelines.transforms.write import WriteShards
from weir.readers import BlockId, DeadLetter, Fault, Letters

__all__ = ["Intake"]


@dataclass
class Intake:
    """Makes the parts of one commit; `before` are the files of histories before it.

    Every step has a fixed order (partitions by key, windows by time, shards by number), so that the same rows give the
    same bits whatever the order in which the engine brought them.
    """

    store: Store
    run: Run
    config: PipelineConfig
    before: HistoryFiles

    def parts(self, slices: Iterable[Slice]) -> Iterator[Made]:
        """Write what the slices bring that is not accounted for, and yield it."""
        found = _by_partition(slices)
        letters = {key: _dead(ones, self.run.base.sources[key].resume) for key, ones in found.items()}
        fresh = self._accepted([self._fresh(key, ones) for key, ones in found.items()], letters)
        shards = self._shards(fresh)
        yield from self._counted(shards)
        yield from self._written(shards)
        for key, ones in sorted(letters.items()):
            yield from self._letters(key, ones)

    def _fresh(self, key: str, slices: list[Slice]) -> Keyed:
        """Return the rows of a partition that no commit accounts for."""
        rows = pa.Table.from_batches([one.rows for one in slices]).combine_chunks()
        times, positions = rows[columns.TIMESTAMP].to_numpy(), rows[columns.POSITION].to_numpy()
        windows, base = times // self.run.window_ms * self.run.window_ms, self.run.base
        known = base.is_counted(key, windows, positions) | base.is_inherited(key, times, positions)
        places = np.flatnonzero(~(known | np.isin(positions, self.run.stays_refused(key))))
        batches = rows.take(pa.array(places)).combine_chunks().to_batches()
        return Keyed(key, windows[places], batches[0] if batches else slices[0].rows[:0])

    def _accepted(self, fresh: list[Keyed], letters: dict[str, list[DeadLetter]]) -> list[Keyed]:
        """Return the rows without those that come too late or have the key of another item; these join the letters."""
        base = self.run.base
        if (horizon := base.horizon) is not None:
            late = before_retention(horizon)
            fresh = [_refused(one, one.windows < horizon.ms, late, letters) for one in fresh]
        known = owners(self.store, base.cursor.sequence - 1)
        seen = Progress(claims=[new_claims(one.rows, known) for one in fresh]).settle()
        return [_refused(one, of_others(one.rows, known, seen.contested), COLLISION, letters) for one in fresh]

    def _shards(self, fresh: list[Keyed]) -> list[tuple[int, list[ShardWindow]]]:
        """Return the shards in order, with the windows of each in order of time, each event once."""
        pieces = defaultdict[int, list[Piece]](list)
        for one in fresh:
            for shard, piece in by_shard(one, np.arange(len(one.windows)), self.config.user_shards):
                pieces[shard].append(piece)
        transform = Deduplicate(self.store, self.run)
        transform.setup()
        return [found for one in sorted(pieces.items(), key=itemgetter(0)) for found in transform.process(one)]

    def _counted(self, shards: list[tuple[int, list[ShardWindow]]]) -> Iterator[WindowSketches]:
        by_start = defaultdict[int, list[ShardWindow]](list)
        for window in (window for _, windows in shards for window in windows):
            by_start[window.name.start_ms].append(window)
        for start_ms, windows in by_start.items():
            items = self._sketch(columns.ITEM_KEY, [window.items for window in windows])
            yield WindowSketches(start_ms, items, self._sketch(columns.USER_KEY, [window.users for window in windows]))

    def _sketch(self, column: str, tables: list[pa.Table]) -> bytes:
        counter = CountKeys(self.config.sketch, column)
        found = counter.create_accumulator()
        for table in tables:
            found = counter.add_input(found, table)
        return counter.extract_output(found)

    def _written(self, shards: list[tuple[int, list[ShardWindow]]]) -> Iterator[Made]:
        attach = AttachHistories(self.store, self.run, self.config, self.before)
        expose = AttachExposure(self.store, self.run, self.config) if self.config.exposed_items else None
        write = WriteShards(self.store, self.run, self.config)
        for shard in shards:
            for made in attach.process(shard):
                if isinstance(made, beam.pvalue.TaggedOutput):
                    delta: HistoryFile = made.value
                    yield delta
                else:
                    for window in expose.process(made) if expose else (made,):
                        yield from write.process(window)

    def _letters(self, key: str, letters: list[DeadLetter]) -> Iterator[LettersWritten]:
        if letters:
            inside = sorted(letters, key=lambda letter: letter.position)
            block = BlockId(key, inside[0].position)
            yield from WriteDeadLetters(self.store, self.run).process(Letters(block, tuple(inside)))


def _by_partition(slices: Iterable[Slice]) -> dict[str, list[Slice]]:
    found = defaultdict[str, list[Slice]](list)
    for one in slices:
        found[one.partition].append(one)
    return {key: sorted(found[key], key=lambda one: one.stop) for key in sorted(found)}


def _dead(slices: list[Slice], resume: int) -> list[DeadLetter]:
    """Return the dead letters that came with the tiles; those below `resume` have been counted."""
    return [letter for one in slices if one.tile for letter in one.tile.letters if letter.position >= resume]


def _refused(rows: Keyed, wrong: npt.NDArray[np.bool_], fault: Fault, letters: dict[str, list[DeadLetter]]) -> Keyed:
    """Return the other rows, and add the letters of the wrong ones (n,)."""
    kept, tagged = without(rows, wrong, fault)
    for one in tagged:
        letters[rows.partition] += one.value.letters
    return kept
