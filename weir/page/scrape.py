"""Scrape the Prometheus metrics of the stages."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout
from prometheus_client.parser import text_string_to_metric_families

from weir.config import Settings
from weir.up.ports import metrics_url

__all__ = ["STAGES", "Samples", "addresses", "scrape"]

STAGES: Final = ("pipeline", "trainer", "serving", "monitor")
_SECONDS: Final = 2.0
_MOST_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class Samples:
    """The metric samples of one stage."""

    values: Mapping[str, list[tuple[Mapping[str, str], float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> "Samples":
        """Parse Prometheus' text format; raises `ValueError`."""
        found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return cls(found)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum over the samples with these labels; None without samples or if it is not finite."""
        matching = [value for have, value in self.values.get(name, ()) if labels.items() <= have.items()]
        total = sum(matching)
        return total if matching and math.isfinite(total) else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the samples above 0, by the value of one label."""
        return {have[label]: value for have, value in self.values.get(name, ()) if value > 0}


def addresses(settings: Settings) -> dict[str, str]:
    """Return the URL of each stage's metrics: from `monitor.page_metrics`, else on this machine."""
    return {stage: settings.monitor.page_metrics.get(stage) or metrics_url(settings, stage) for stage in STAGES}


async def scrape(session: ClientSession, urls: Mapping[str, str]) -> dict[str, Samples | None]:
    """Scrape all stages concurrently; None for a stage that does not answer."""
    found = await asyncio.gather(*(_one(session, url) for url in urls.values()))
    return dict(zip(urls, found, strict=True))


async def _one(session: ClientSession, url: str) -> Samples | None:
    try:
        async with session.get(url, timeout=ClientTimeout(_SECONDS)) as answer:
            answer.raise_for_status()
            data = await answer.content.read(_MOST_BYTES)
            while not answer.content.at_eof() and len(data) < _MOST_BYTES:
                data += await answer.content.read(_MOST_BYTES - len(data))
        return await asyncio.to_thread(Samples.of, data.decode(errors="replace"))
    except (ClientError, TimeoutError, OSError, ValueError):
        return None
