""""""

import asyncio
import math

from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from tests.ports import free_port
from tests.weir.up.damage import recall
from weir.config import Settings
from weir.page.state import STAGES, K, Rates, Samples, addresses, recall_points, scrape
from weir.runtime.metrics_server import exposed
from weir.serving.monitor.results import mean_recall

STEPS = st.lists(st.tuples(st.floats(0.1, 9), st.integers(0, 50)), min_size=1, max_size=40)


@given(STEPS)
def test_a_rate_is_the_rise_since_the_last_moment_that_is_15_seconds_ago_or_the_first(
    steps: list[tuple[float, int]],
) -> None:
    rates, moments = Rates(), [(0.0, 0)]
    assert rates.of("events", 0, 0.0) is None
    for seconds, rise in steps:
        now, count = moments[-1][0] + seconds, moments[-1][1] + rise
        moments.append((now, count))
        since = [moment for moment in moments[:-1] if moment[0] <= now - 15] or moments[:1]
        assert rates.of("events", count, now) == (count - since[-1][1]) / (now - since[-1][0])


def test_a_count_that_starts_anew_or_is_not_known_has_no_rate() -> None:
    rates = Rates()
    for count, now, expected in [(5, 0, None), (9, 2, 2.0), (1, 3, None), (4, 4, 3.0), (None, 5, None), (8, 6, None)]:
        assert rates.of("events", count, now) == expected
    assert rates.of("other", 8, 7) is None


@given(st.lists(st.tuples(st.none() | st.floats(0, 1), st.integers(1, 500)), max_size=20))
def test_each_window_has_the_mean_up_to_it(values: list[tuple[float | None, int]]) -> None:
    recalls = [recall(at, f"w{at:02}", value, examples) for at, (value, examples) in enumerate(values)]
    points = recall_points(recalls)
    assert list(points) == list(range(len(recalls)))
    for at, point in points.items():
        assert point["model"] == mean_recall(recalls[max(0, at - 4) : at + 1], "model", K)


VALUES = st.floats(0, 1e12)


@given(st.dictionaries(st.sampled_from(["empty_id", "not_utf8", "wrong_type"]), VALUES), VALUES)
def test_what_a_registry_exports_is_read_back(reasons: dict[str, float], loss: float) -> None:
    registry = CollectorRegistry()
    dead = Counter("dead", "Rows.", ["reason"], registry=registry)
    for reason, count in reasons.items():
        dead.labels(reason).inc(count)
    Gauge("loss", "Loss.", registry=registry).set(loss)
    found = Samples.of(generate_latest(registry).decode())
    assert found.total("loss") == loss
    assert found.by("dead_total", "reason") == {reason: count for reason, count in reasons.items() if count > 0}
    for reason, count in reasons.items():
        assert found.total("dead_total", reason=reason) == count
    total = found.total("dead_total")
    assert total is None if not reasons else total is not None and math.isclose(total, sum(reasons.values()))


def test_what_is_no_number_or_not_there_is_not_known() -> None:
    registry = CollectorRegistry()
    Gauge("drift", "Drift.", registry=registry).set(math.nan)
    found = Samples.of(generate_latest(registry).decode())
    assert found.total("drift") is None
    assert found.total("other") is None


def test_a_stage_that_does_not_answer_is_none_and_the_others_are_read() -> None:
    registry = CollectorRegistry()
    Gauge("loss", "Loss.", registry=registry).set(3)
    port = free_port()

    async def both(url: str) -> dict[str, Samples | None]:
        async with ClientSession() as session:
            return await scrape(session, {"trainer": url, "serving": f"http://127.0.0.1:{port}/metrics"})

    with exposed(registry, "127.0.0.1", 0) as where:
        found = asyncio.run(both(f"http://127.0.0.1:{where.split()[1]}/metrics"))
    trainer = found["trainer"]
    assert trainer is not None
    assert trainer.total("loss") == 3
    assert found["serving"] is None


def test_the_addresses_are_of_this_machine_unless_the_settings_have_others() -> None:
    settings = Settings()
    assert addresses(settings)["trainer"] == f"http://127.0.0.1:{settings.trainer.metrics_port}/metrics"
    monitor = settings.monitor.model_copy(update={"page_metrics": {"trainer": "http://trainer:9102/metrics"}})
    elsewhere = addresses(settings.model_copy(update={"monitor": monitor}))
    assert elsewhere == addresses(settings) | {"trainer": "http://trainer:9102/metrics"}
    assert elsewhere.keys() == set(STAGES)
