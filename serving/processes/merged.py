"""The metrics of several processes as those of one server.

Counters and histograms add up; those of a process that has ended stay in the sums, so that no rate sees a fall. Of
gauges the worst counts. The multiprocess mode of the client library is of no use here: it keeps no exemplars, has no
metrics of processes, and never forgets a label such as the version of a bundle.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from weir.serving.processes.link import ProcessLink

__all__ = ["ServerCollector", "merged"]

_SUMMED: Final = frozenset(
    {
        "weir_queue_queries",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
    }
)
_LEAST: Final = frozenset(
    {
        "weir_history_sequence",
        "weir_catalogue_read_timestamp_seconds",
        "process_max_fds",
        "process_start_time_seconds",
    }
)
"""Of all other gauges the largest counts."""

_RESIDENT: Final = "process_resident_memory_bytes"
_SCRAPE_SECONDS: Final = 2.0
_ADDING: Final = ("counter", "histogram")


def merged(groups: Iterable[Iterable[Metric]]) -> list[Metric]:
    """Return the metrics of all groups, each series once."""
    families: dict[str, Metric] = {}
    series: dict[str, dict[tuple[object, ...], Sample]] = {}
    for family in (family for group in groups for family in group):
        if family.name not in families:
            families[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
            series[family.name] = {}
        known, one = series[family.name], _rule(family)
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            known[key] = one(known[key], sample) if key in known else sample
    for name, family in families.items():
        family.samples = list(series[name].values())
    return list(families.values())


@dataclass(eq=False)
class ServerCollector(Collector):
    """Collects what the parent's own registry holds, and what its processes say."""

    own: CollectorRegistry
    pids: Callable[[], list[int]]
    links: dict[int, ProcessLink] = field(default_factory=dict)
    _ended: list[Metric] = field(default_factory=list, init=False)

    def ended(self, link: ProcessLink) -> None:
        """Keep the counts of a process that has ended, as of the last scrape."""
        counts = [family for family in link.metrics if family.type in _ADDING]
        self._ended = merged([self._ended, counts])
        self.links.pop(link.number, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the server."""
        links = list(self.links.values())
        # All at once: processes that are starting, one after the other, would outlast the connection of the scrape.
        with ThreadPoolExecutor(len(links) or 1) as pool:
            live = list(pool.map(lambda link: link.scraped(_SCRAPE_SECONDS), links))
        for family in merged([self.own.collect(), self._ended, *live]):
            if family.name == _RESIDENT and (resident := _resident(self.pids())):
                family.samples = [sample._replace(value=resident) for sample in family.samples]
            yield family


def _rule(family: Metric) -> Callable[[Sample, Sample], Sample]:
    if family.type in _ADDING or family.name in _SUMMED:
        return _added
    return _least if family.name in _LEAST else _largest


def _added(one: Sample, other: Sample) -> Sample:
    if one.name.endswith("_created"):
        return _least(one, other)
    exemplars = [sample.exemplar for sample in (one, other) if sample.exemplar is not None]
    newest = max(exemplars, key=lambda exemplar: exemplar.timestamp or 0.0, default=None)
    return one._replace(value=one.value + other.value, exemplar=newest)


def _least(one: Sample, other: Sample) -> Sample:
    return other if other.value < one.value else one


def _largest(one: Sample, other: Sample) -> Sample:
    return other if other.value > one.value else one


def _resident(pids: list[int]) -> float:
    """Return the memory that processes have together, in bytes: their own, and once what the largest of them maps.

    They map the same. The kernel would tell how many share each page, but walks through all of them to do so.
    """
    own, mapped = 0, [0]
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue  # it has ended
        sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.startswith("Rss")}
        own += sizes["RssAnon"]
        mapped.append(sizes["RssFile"] + sizes["RssShmem"])
    return float(own + max(mapped))
