import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.openmetrics.exposition import generate_latest

from weir.serving.processes.link import ProcessLink
from weir.serving.processes.merged import ServerCollector, merged


class Process:
    """The metrics of a process: what it has counted, timed, and holds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter("calls", "Calls.", ("code",), registry=self.registry)
        self.seconds = Histogram("seconds", "Seconds.", buckets=(1, 10), registry=self.registry)
        self.queued = Gauge("weir_queue_queries", "Queue.", registry=self.registry)
        self.sequence = Gauge("weir_history_sequence", "Window.", registry=self.registry)
        self.missing = Gauge("weir_history_missing_files", "Files.", registry=self.registry)


def value(families: Iterable[Metric], name: str, **labels: str) -> float | None:
    found = [s.value for family in families for s in family.samples if (s.name, s.labels) == (name, labels)]
    assert len(found) <= 1, f"{name} is there {len(found)} times"
    return found[0] if found else None


@given(st.lists(st.tuples(st.sampled_from(["OK", "Aborted"]), st.floats(0, 20)), max_size=30), st.integers(1, 4))
def test_what_several_count_is_what_one_would_have_counted(calls: list[tuple[str, float]], processes: int) -> None:
    several, one = [Process() for _ in range(processes)], Process()
    for number, (code, seconds) in enumerate(calls):
        for process in (several[number % processes], one):
            process.calls.labels(code).inc()
            process.seconds.observe(seconds)
    found, expected = merged(process.registry.collect() for process in several), list(one.registry.collect())
    for family in expected:
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                assert value(found, sample.name, **sample.labels) == pytest.approx(sample.value)


def test_of_gauges_the_worst_counts() -> None:
    one, other = Process(), Process()
    for process, queued, sequence, missing in ((one, 3, 7, 0), (other, 4, 6, 2)):
        process.queued.set(queued)
        process.sequence.set(sequence)
        process.missing.set(missing)
    found = merged([one.registry.collect(), other.registry.collect()])
    assert value(found, "weir_queue_queries") == 7
    assert value(found, "weir_history_sequence") == 6
    assert value(found, "weir_history_missing_files") == 2


def test_the_newest_exemplar_of_a_bucket_stays() -> None:
    one, other = Process(), Process()
    other.seconds.observe(5, {"trace_id": "older"})
    one.seconds.observe(5, {"trace_id": "newer"})
    registry = CollectorRegistry()
    registry.register(ServerCollector(CollectorRegistry(), list))
    for order in ([one, other], [other, one]):
        found = merged(process.registry.collect() for process in order)
        [bucket] = [sample for family in found for sample in family.samples if sample.labels == {"le": "10.0"}]
        assert bucket.value == 2
        assert bucket.exemplar is not None
        assert bucket.exemplar.labels == {"trace_id": "newer"}


class Scraped(ProcessLink):
    """A process whose metrics are at hand."""

    def __init__(self, number: int, process: Process) -> None:
        self.number, self.process, self.metrics = number, process, []

    def scraped(self, seconds: float) -> list[Metric]:
        self.metrics = list(self.process.registry.collect())
        return self.metrics


def test_counts_never_fall_when_a_process_ends() -> None:
    collector = ServerCollector(CollectorRegistry(), list)
    links = [Scraped(number, Process()) for number in range(2)]
    collector.links.update({link.number: link for link in links})
    for number, link in enumerate(links):
        link.process.calls.labels("OK").inc(10 + number)
        link.process.queued.set(5)
    assert value(collector.collect(), "calls_total", code="OK") == 21
    collector.ended(links[1])
    again = Scraped(1, Process())
    collector.links[1] = again
    again.process.calls.labels("OK").inc(2)
    again.process.queued.set(1)
    found = list(collector.collect())
    assert value(found, "calls_total", code="OK") == 23
    assert value(found, "weir_queue_queries") == 6  # what an ended process held is gone


class Meeting(Scraped):
    """A process that answers when all others are asked, too."""

    meeting = threading.Barrier(3)

    def scraped(self, seconds: float) -> list[Metric]:
        self.meeting.wait(20)
        return super().scraped(seconds)


def test_no_process_waits_for_the_answer_of_another() -> None:
    collector = ServerCollector(CollectorRegistry(), list)
    for number in range(3):
        link = collector.links[number] = Meeting(number, Process())
        link.process.calls.labels("OK").inc()
    assert value(collector.collect(), "calls_total", code="OK") == 3


def test_resident_memory_counts_what_is_shared_once() -> None:
    own = CollectorRegistry()
    Gauge("process_resident_memory_bytes", "Memory.", registry=own).set(1)
    lines = Path("/proc/self/status").read_text().splitlines()
    anonymous, resident = (
        next(1024 * int(line.split()[1]) for line in lines if line.startswith(name)) for name in ("RssAnon", "VmRSS")
    )
    for processes, expected in ((1, resident), (3, 2 * anonymous + resident)):
        pids = [os.getpid()] * processes
        [family] = ServerCollector(own, lambda pids=pids: [*pids, 2**22 + 1]).collect()  # type: ignore[misc]
        assert family.samples[0].value == pytest.approx(expected, rel=0.1)


def test_it_is_written_as_any_registry_is() -> None:
    process, registry = Process(), CollectorRegistry()
    process.seconds.observe(5, {"trace_id": "a"})
    registry.register(ServerCollector(process.registry, list))
    text = generate_latest(registry).decode()
    assert 'seconds_bucket{le="10.0"} 1.0 # {trace_id="a"} 5.0' in text
    assert text.count("# TYPE seconds histogram") == 1
