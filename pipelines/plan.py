"""What a run is to read: the log as it is now, against what the commits say has been read."""

import glob
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contracts import Store, WindowLog, WindowManifest
from pipelines.blocks import BlockId
from pipelines.config import PipelineConfig
from pipelines.positions import Committed, Run, Seen, seen_partitions
from pipelines.sources import Partition
from pipelines.transforms.dead_letters import read_dead_letters
from pipelines.transforms.read import Reading, first_block

__all__ = ["LayoutError", "Plan", "check_layout", "make_plan"]

logger = logging.getLogger(__name__)


class LayoutError(ValueError):
    """A setting contradicts the windows that the store already holds."""


@dataclass(frozen=True)
class Plan:
    """A run and its readings; `is_needed` tells whether any partition is new, has grown or was cut short."""

    run: Run
    readings: tuple[Reading, ...]
    is_needed: bool


def make_plan(
    store: Store,
    config: PipelineConfig,
    partitions: Iterable[Partition],
    manifests: Sequence[WindowManifest],
    *,
    flush: bool,
    only_whole_lines: bool,
) -> Plan:
    """Return what to read: partitions that are new or have grown, and those with rows of open windows."""
    seen = seen_partitions(manifests)
    readings, needed = [], False
    for partition in partitions:
        before = seen.get(partition.key, Seen(0, 0, 0, 0))
        has_changed = partition.key not in seen or partition.size != before.size
        if has_changed or not before.is_done:
            readings.append(Reading(partition, before.resume, before.size, only_whole_lines))
            needed |= has_changed or before.was_cut
    partitions_read = {reading.partition.key: reading.partition for reading in readings}
    run = Run(
        committed=Committed.of(manifests, partitions_read.keys()),
        partitions=partitions_read,
        starts={reading.partition.key: reading.start for reading in readings},
        seen=seen,
        dead_before={r.partition.key: _dead_before(store, r, seen.get(r.partition.key), config) for r in readings},
        window_ms=config.window_ms,
        lateness_ms=1000 * config.allowed_lateness_seconds,
        flush=flush,
    )
    return Plan(run, tuple(readings), needed)


def dead_letter_files(store: Store, key: str) -> list[str]:
    """Return the files of a partition's dead letters."""
    return store.glob(f"dead-letters/{glob.escape(key)}/*.jsonl")


def _dead_before(store: Store, reading: Reading, seen: Seen | None, config: PipelineConfig) -> int:
    """Count the dead letters of the blocks that will not be read again."""
    if seen is None or not seen.dead:
        return 0
    key = reading.partition.key
    first = BlockId(key, first_block(reading, config)).dead_letters
    whole = BlockId(key, -1).dead_letters
    files = [name for name in dead_letter_files(store, key) if name != whole and name < first]
    return sum(len(read_dead_letters(store, name)) for name in files)


def check_layout(store: Store, config: PipelineConfig, manifests: Sequence[WindowManifest]) -> None:
    """Refuse settings under which committed rows would be counted again; raises `LayoutError`."""
    if not manifests:
        return
    newest = manifests[-1]
    if (length := newest.end_ms - newest.start_ms) != config.window_ms:
        message = (
            f"window_seconds is {config.window_seconds}, but the windows of {store.url} are {length / 1000:g} s long: "
            "use that, or a new store"
        )
        raise LayoutError(message)
    log = WindowLog(store)
    for shard in log.shards(newest):
        users = log.examples(newest, shard, ["user_key"])["user_key"].to_numpy().view("uint64")
        if (users % config.user_shards != shard).any():
            message = (
                f"user_shards is {config.user_shards}, but {store.url} was written with another number: "
                "use that, or a new store"
            )
            raise LayoutError(message)
