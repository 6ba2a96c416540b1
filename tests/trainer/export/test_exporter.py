import pytest
from prometheus_client import CollectorRegistry

from contracts import BundleLog, Store
from tests.trainer.support import absorbed
from tests.trainer.windows import WindowWriter, synthetic
from trainer.config import TrainerConfig
from trainer.export.exporter import Exporter
from trainer.metrics import TrainerMetrics
from trainer.state import TrainerState


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    return absorbed(store, config)


def exporter(store: Store, config: TrainerConfig, **settings: object) -> tuple[Exporter, CollectorRegistry]:
    registry = CollectorRegistry()
    changed = TrainerConfig.model_validate({**config.model_dump(), **settings})
    return Exporter(store, changed, TrainerMetrics(registry)), registry


def test_bundles_come_every_few_windows(store: Store, config: TrainerConfig, state: TrainerState) -> None:
    made, registry = exporter(store, config, export_every_windows=3)
    made.export_if_due(state)
    for sequence in range(7):
        state.position.learnt_sequence, state.position.step = sequence, 10 * (sequence + 1)
        made.export_if_due(state)
        made.export_if_due(state)
    assert BundleLog(store).versions() == ["00000002-0000000030", "00000005-0000000060"]
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "promoted"}) == 2
    assert (
        registry.get_sample_value(
            "weir_bundle_info", {"version": "00000005-0000000060", "window": "", "index": "Flat", "promoted": "true"}
        )
        == 1
    )


def test_or_when_enough_time_has_passed_even_without_a_further_window(
    store: Store, config: TrainerConfig, state: TrainerState
) -> None:
    now = 100.0
    timed = TrainerConfig.model_validate({**config.model_dump(), "export_every_seconds": 5})
    made = Exporter(store, timed, TrainerMetrics(CollectorRegistry()), clock=lambda: now)
    state.position.learnt_sequence = 0
    made.export_if_due(state)
    assert BundleLog(store).versions() == []
    now += 5
    made.export_if_due(state)
    now += 5
    made.export_if_due(state)
    assert BundleLog(store).versions() == ["00000000-0000000000"]


def test_a_failure_is_counted_and_logged_and_stops_nothing(
    store: Store, config: TrainerConfig, state: TrainerState, caplog: pytest.LogCaptureFixture
) -> None:
    made, registry = exporter(store, config)
    state.config = TrainerConfig.model_validate({**config.model_dump(), "index": "Banana7"})
    state.position.learnt_sequence = 0
    made.export_if_due(state)
    assert "could not be exported" in caplog.text
    assert "Banana7" in caplog.text
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "failed"}) == 1
    assert BundleLog(store).versions() == []
    state.config, state.position.step = config, 1
    made.export_if_due(state)
    assert BundleLog(store).current() == "00000000-0000000001"
