"""A topic as the driver sees it: what there is to read, whether the brokers answer, and what they have lost."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from contracts import LogState, SourceSpan
from pipelines.config import PipelineConfig
from pipelines.kafka.address import Topic, is_topic
from pipelines.kafka.client import KafkaPartition, TopicClient
from pipelines.kafka.errors import BrokerAwayError, StoppedPartitionError, TopicMissingError
from pipelines.kafka.metrics import TopicMetrics
from pipelines.kafka.ranges import first_unread
from pipelines.plan import InHand

__all__ = ["TopicInput", "open_topic"]

logger = logging.getLogger(__name__)

_REASONS: Final = {
    "deleted": "the broker has deleted offsets {start} to {first} before they were committed",
    "truncated": "offsets up to {start} were read, but the broker has lost those from {size} on",
}


@dataclass
class TopicInput:
    """The topic of one driver; `stopped` are the sentences about partitions that are not read, by key."""

    config: PipelineConfig
    metrics: TopicMetrics
    client: TopicClient
    stopped: dict[str, str] = field(default_factory=dict)
    _problem: str = field(default="", init=False)

    def look(self) -> list[KafkaPartition]:
        """Return the partitions as they are now; raises `BrokerAwayError` or `TopicMissingError`."""
        found = self.client.partitions()
        self.metrics.away.set(0)
        return found

    def look_or_wait(self) -> list[KafkaPartition] | None:
        """Return the partitions, none without the topic, None while no broker answers: it is logged once."""
        try:
            found = self.look()
        except TopicMissingError as error:
            self._say(f"{error}; waiting for it")
            return []
        except BrokerAwayError as error:
            self.metrics.away.set(1)
            self._say(f"{error}; waiting, and no window is committed meanwhile")
            return None
        if self._problem:
            logger.warning("%s: the brokers answer again", self.config.log)
        self._problem = ""
        return found

    def _say(self, problem: str) -> None:
        if not self._problem:
            logger.warning("%s", problem)
        self._problem = problem

    def settle(self, partitions: list[KafkaPartition], state: LogState, in_hand: InHand) -> list[KafkaPartition]:
        """Return the partitions that can be read, and fix in `in_hand` where reading starts where no commit says it.

        Partitions from which the broker has lost something are left out, unless gaps are accepted.
        """
        known: Mapping[str, SourceSpan] = state.sources | in_hand.pending
        partitions = [replace(one, key=_newest_key(one.key, known)) for one in partitions]
        new = [one for one in partitions if one.key not in known and one.key not in in_hand.reached]
        self._begin(new, {**known, **in_hand.reached}, in_hand)
        known = state.sources | in_hand.pending
        reasons = {one.key: reason for one in partitions if (reason := _lost(one, known, in_hand))}
        if self.config.kafka.accept_gap:
            partitions = [self._pass_over(one, known, in_hand) if one.key in reasons else one for one in partitions]
            reasons = {}
        self._stop([one for one in partitions if one.key in reasons], reasons, known, in_hand)
        return [one for one in partitions if one.key not in reasons]

    def _begin(self, new: list[KafkaPartition], known: Collection[str], in_hand: InHand) -> None:
        """Fix where new partitions start; those that a known topic has got since are read whole."""
        topic = new[0].key.rpartition("/")[0] + "/" if new else ""
        is_known = any(key.startswith(topic) for key in known)
        begin = self.client.begin(new, "earliest" if is_known else self.config.kafka.start)
        for one in new:
            in_hand.reached[one.key] = at = begin[one.number]
            if at:
                in_hand.pending[one.key] = SourceSpan(start=0, stop=at, resume=at, size=one.size)

    def _pass_over(self, one: KafkaPartition, known: Mapping[str, SourceSpan], in_hand: InHand) -> KafkaPartition:
        """Continue behind what the broker has lost; after a truncation the offsets mean other messages."""
        start = first_unread(one, known, in_hand.reached)
        if start < one.first:
            before = known[one.key]
            at, lost = one.first, one.first - start
            span = before.model_copy(update={"stop": max(at, before.stop), "resume": at})
        else:
            one = replace(one, key=_renewed(one.key))
            at, lost = one.size, start - one.size
            span = SourceSpan(start=0, stop=at, resume=at, size=one.size)
        in_hand.pending[one.key], in_hand.reached[one.key] = span, at
        self.metrics.lost.inc(lost)
        logger.warning("%s: a gap of %d offsets is accepted; it is read on from %d as %s", one.name, lost, at, one.key)
        return one

    def _stop(
        self,
        lost: list[KafkaPartition],
        reasons: Mapping[str, str],
        known: Mapping[str, SourceSpan],
        in_hand: InHand,
    ) -> None:
        found = {}
        for one in lost:
            start = first_unread(one, known, in_hand.reached)
            sentence = _REASONS[reasons[one.key]].format(start=start, first=one.first, size=one.size)
            found[one.key] = f"{one.name} is stopped: {sentence}"
            if one.key not in self.stopped:
                logger.error("%s", StoppedPartitionError(found[one.key]).explain()[0])
        self.stopped = found
        self.metrics.stop(reasons.values())

    def unread(self, partitions: list[KafkaPartition], state: LogState, in_hand: InHand) -> int:
        """Return how many offsets of these partitions are not read yet, and show it."""
        known = state.sources | in_hand.pending
        left = {one.number: max(0, one.size - first_unread(one, known, in_hand.reached)) for one in partitions}
        for number, count in left.items():
            self.metrics.unread.labels(str(number)).set(count)
        return sum(left.values())

    def check(self, *, is_whole: bool) -> None:
        """Raise `StoppedPartitionError` or `BrokerAwayError` if a bounded run has not read all there is."""
        if self.stopped:
            raise StoppedPartitionError("; ".join(self.stopped.values()))
        if not is_whole:
            seconds = self.config.kafka.timeout_seconds
            raise BrokerAwayError(
                f"{self.config.log}: the brokers sent nothing for {seconds:g} s, though there is more"
            )


def open_topic(config: PipelineConfig, metrics: TopicMetrics) -> TopicInput | None:
    """Return the topic that the log is, None where it is one of files; raises `KafkaSettingsError`."""
    if not is_topic(config.log):
        return None
    return TopicInput(config, metrics, TopicClient(Topic.parse(config.log), config.kafka))


def _lost(one: KafkaPartition, known: Mapping[str, SourceSpan], in_hand: InHand) -> str | None:
    start = first_unread(one, known, in_hand.reached)
    if start < one.first:
        return "deleted"
    return "truncated" if start > one.size else None


def _newest_key(key: str, known: Mapping[str, SourceSpan]) -> str:
    while (later := _renewed(key)) in known:
        key = later
    return key


def _renewed(key: str) -> str:
    """Return the key under which a partition is read on after a truncation: ``key@2``, then ``key@3``."""
    name, mark, number = key.partition("@")
    return f"{name}@{int(number) + 1 if mark else 2}"
