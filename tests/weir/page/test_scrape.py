import asyncio
import math

from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from tests.ports import free_port
from weir.config import Settings
from weir.contracts.exposition import exposed
from weir.page.scrape import STAGES, Samples, addresses, scrape

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
