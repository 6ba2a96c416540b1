from threading import Timer
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.trainer.export.held import HeldKeeper
from tests.trainer.support import absorbed
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, BundleManifest, Pin, Store, WindowLog
from weir.trainer.export.bundle import export_bundle
from weir.trainer.export.exporter import Exporter
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import SharedWindow
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.train import train


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    return absorbed(store, config)


def places(store: Store) -> list[str]:
    """Return where in the stream the bundles stand: their names without the digest."""
    return [version.rpartition("-")[0] for version in BundleLog(store).versions()]


def exporter(store: Store, config: TrainerConfig, **settings: object) -> tuple[Exporter, CollectorRegistry]:
    registry = CollectorRegistry()
    changed = TrainerConfig.model_validate({**config.model_dump(), **settings})
    return Exporter(store, changed, TrainerMetrics(registry)), registry


def test_bundles_come_every_few_windows(store: Store, config: TrainerConfig, state: TrainerState) -> None:
    made, registry = exporter(store, config, export_every_windows=3)
    made.export_if_due(state)
    for sequence in range(7):
        state.position.trained_sequence, state.position.step = sequence, 10 * (sequence + 1)
        made.export_if_due(state)
        made.export_if_due(state)
    assert places(store) == ["00000002-0000000030", "00000005-0000000060"]
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "promoted"}) == 2
    facts = {"version": str(BundleLog(store).current()), "window": "", "index": "Flat", "promoted": "true"}
    assert registry.get_sample_value("weir_bundle_exported_info", facts) == 1
    # The second one had nothing to compare: no row was touched.
    assert registry.get_sample_value("weir_trainer_bundle_compared_ratio") == 0


def test_or_when_enough_time_has_passed_even_without_a_further_window(
    store: Store, config: TrainerConfig, state: TrainerState
) -> None:
    now = 100.0
    timed = TrainerConfig.model_validate({**config.model_dump(), "export_every_seconds": 5})
    made = Exporter(store, timed, TrainerMetrics(CollectorRegistry()), clock=lambda: now)
    state.position.trained_sequence = 0
    made.export_if_due(state)
    assert BundleLog(store).versions() == []
    now += 5
    made.export_if_due(state)
    now += 5
    made.export_if_due(state)
    assert places(store) == ["00000000-0000000000"]


def test_exports_wait_while_more_windows_do_and_get_a_third_of_the_time(
    store: Store, writer: WindowWriter, config: TrainerConfig, state: TrainerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic(writer, first=1, windows=6)
    now = 100.0
    timed = TrainerConfig.model_validate({**config.model_dump(), "export_every_windows": 1})
    made = Exporter(store, timed, TrainerMetrics(CollectorRegistry()), follows=True, clock=lambda: now)

    def taking_two_seconds(*arguments: Any) -> BundleManifest:
        nonlocal now
        now += 2
        return export_bundle(*arguments)

    monkeypatch.setattr("weir.trainer.export.exporter.export_bundle", taking_two_seconds)
    seen = []
    for sequence, moment in enumerate((100.0, 105.0, 107.0, 108.0, 110.0, 112.0, 112.5)):
        now = moment
        state.position.trained_sequence, state.position.step = sequence, sequence
        made.export_if_due(state)
        seen.append(len(places(store)))
    # At 107 the last one, of two seconds, started 7 s ago; the seventh window is the last there is.
    assert seen == [1, 1, 2, 2, 2, 2, 3]
    assert places(store)[-1].startswith("00000006")


def follower(
    store: Store, config: TrainerConfig, state: TrainerState, **settings: object
) -> tuple[Exporter, HeldKeeper, CollectorRegistry]:
    """Return who exports each window for a follower whose table is large, and has the first bundle made by now."""
    changed = {**config.model_dump(), "index": "IVF8,SQfp16", "export_every_windows": 1, **settings}
    state.position.trained_sequence, state.position.trained_window = 0, "first"
    state.config = TrainerConfig.model_validate(changed)
    registry, planner = CollectorRegistry(), HeldKeeper()
    made = Exporter(store, state.config, TrainerMetrics(registry), follows=True)
    made._planner = planner
    made.export_if_due(state)
    state.position.trained_sequence, state.position.step, state.position.trained_window = 1, 1, "later"
    return made, planner, registry


def test_a_follower_goes_on_while_a_bundle_of_all_items_is_made(
    store: Store, config: TrainerConfig, state: TrainerState
) -> None:
    made, planner, registry = follower(store, config, state)
    assert not made.due(state)
    made.export_if_due(state)
    assert places(store) == []
    planner.let_go()
    # It is published as soon as it is there, and then comes the window that was due meanwhile, which needs no more.
    state.position.step = 2
    assert made.due(state)
    made.export_if_due(state)
    assert places(store) == ["00000000-0000000000"]
    made.export_if_due(state)
    assert places(store) == ["00000000-0000000000", "00000001-0000000002"]
    assert not made.due(state)
    assert [one.depth for one in BundleLog(store).manifests()] == [0, 1]
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "promoted"}) == 2
    fit = BundleLog(store).manifests()[0].index.fit
    assert fit is not None
    assert fit.changed == 0


def test_the_last_export_waits_for_what_is_being_made_and_starts_nothing_for_later(
    store: Store, config: TrainerConfig, state: TrainerState
) -> None:
    # The lists are too old from the first bundle on.
    made, planner, _ = follower(store, config, state, index_training_every_seconds=1e-9)
    state.since.ref = None
    Timer(0.2, planner.going.set).start()
    made.export(state)
    assert places(store) == ["00000000-0000000000", "00000001-0000000001"]
    assert planner.making is None
    assert planner._training is None
    made.export(state)
    assert len(places(store)) == 2


@pytest.mark.parametrize("is_made", [True, False])
def test_a_run_that_is_asked_to_stop_leaves_what_takes_too_long_to_the_next(
    store: Store, config: TrainerConfig, state: TrainerState, caplog: pytest.LogCaptureFixture, *, is_made: bool
) -> None:
    """That is what was being made, or what the last export has started after it."""
    made, planner, registry = follower(store, config, state, last_bundle_seconds=0.2)
    before = []
    if is_made:
        planner.let_go()
        made.export_if_due(state)
        before = ["00000000-0000000000"]
        # Nobody knows what has changed: all items are compared.
        state.since.ref = None
        planner.going.clear()
    what = "of window later, step 1," if is_made else "of window first, step 0,"
    made.export(state)
    assert places(store) == before
    assert f"the bundle {what} is left to the next run" in caplog.text
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "failed"}) == 0
    planner.let_go()
    made, _ = exporter(store, state.config)
    made.export(state)
    assert places(store) == [*before, "00000001-0000000001"]


def test_a_bundle_that_cannot_be_made_beside_the_stream_fails_the_export(
    store: Store, config: TrainerConfig, state: TrainerState, caplog: pytest.LogCaptureFixture
) -> None:
    made, planner, registry = follower(store, config, state, index="IVF8,RQ2x12")
    planner.let_go()
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "failed"}) == 0
    made.export_if_due(state)
    assert "the bundle of window first, step 0, could not be exported" in caplog.text
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "failed"}) == 1
    assert places(store) == []
    # The next one tries again.
    made.export_if_due(state)
    assert planner.making is not None


def test_what_was_put_off_comes_with_the_last_window(
    store: Store, writer: WindowWriter, config: TrainerConfig, state: TrainerState
) -> None:
    synthetic(writer, first=1, windows=4)
    now = 100.0
    timed = TrainerConfig.model_validate({**config.model_dump(), "export_every_windows": 2})
    made = Exporter(store, timed, TrainerMetrics(CollectorRegistry()), follows=True, clock=lambda: now)
    made._seconds = 5.0
    for sequence in range(5):
        state.position.trained_sequence, state.position.step = sequence, sequence
        made.export_if_due(state)
    # Windows 1 and 3 were due; 4 is the first that nothing waits behind.
    assert [place[:8] for place in places(store)] == ["00000004"]


def test_where_no_item_is_frequent_enough_it_says_so_once(
    store: Store, writer: WindowWriter, config: TrainerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    synthetic(writer, windows=2)
    rare = TrainerConfig.model_validate({**config.model_dump(), "admit_after": 1e6})
    summary = train(store, rare)
    assert (summary.windows, summary.bundle) == (2, None)
    [said] = [record.getMessage() for record in caplog.records if "no bundle" in record.getMessage()]
    name = WindowLog(store).committed()[0].name
    assert said == (
        f"no bundle after window {name}: there is no item; one counts once it has occurred trainer.admit_after = 1e+06 "
        "times"
    )


def test_a_failure_is_counted_and_logged_and_stops_nothing(
    store: Store, config: TrainerConfig, state: TrainerState, caplog: pytest.LogCaptureFixture
) -> None:
    made, registry = exporter(store, config)
    state.config = TrainerConfig.model_validate({**config.model_dump(), "index": "Banana7"})
    state.position.trained_sequence = 0
    made.export_if_due(state)
    assert "could not be exported" in caplog.text
    assert "Banana7" in caplog.text
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "failed"}) == 1
    assert BundleLog(store).versions() == []
    state.config, state.position.step = config, 1
    made.export_if_due(state)
    assert places(store) == ["00000000-0000000001"]


def test_while_a_bundle_is_pinned_exports_go_on_and_promotion_waits(
    store: Store, config: TrainerConfig, state: TrainerState
) -> None:
    made, registry = exporter(store, config)
    log = BundleLog(store)
    state.position.trained_sequence = 0
    made.export(state)
    first = str(log.current())
    assert registry.get_sample_value("weir_trainer_bundle_pinned") == 0
    log.set_pin(Pin(version=first, by="ann@shop", at=1.8e9))
    state.position.step = 1
    made.export(state)
    # A restart knows nothing of the pin but what the store says.
    made, registry = exporter(store, config)
    assert registry.get_sample_value("weir_trainer_bundle_pinned") == 1
    state.position.step = 2
    made.export(state)
    assert (log.current(), len(log.versions())) == (first, 3)
    assert made.newest is not None
    assert made.newest.verdict.startswith(f"held: pinned to {first} by ann@shop at 2027-01-15 08:00 UTC; otherwise")
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "pinned"}) == 1
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "promoted"}) == 0
    log.lift_pin()
    state.position.step = 3
    made.export(state)
    assert log.current() == made.newest.version
    assert registry.get_sample_value("weir_trainer_bundle_pinned") == 0
    assert registry.get_sample_value("weir_bundle_exports_total", {"outcome": "promoted"}) == 1


def test_a_pin_that_cannot_be_read_holds_too(
    store: Store, config: TrainerConfig, state: TrainerState, caplog: pytest.LogCaptureFixture
) -> None:
    made, registry = exporter(store, config)
    state.position.trained_sequence = 0
    made.export(state)
    first = BundleLog(store).current()
    store.write("bundles/PIN", b"\xff")
    state.position.step = 1
    made.export(state)
    assert BundleLog(store).current() == first
    assert made.newest is not None
    assert made.newest.verdict.startswith("held: pinned, but the pin cannot be read")
    assert "bundles/PIN" in caplog.text
    assert registry.get_sample_value("weir_trainer_bundle_pinned") == 1


def test_a_review_that_fails_stops_nothing(
    store: Store, config: TrainerConfig, state: TrainerState, caplog: pytest.LogCaptureFixture
) -> None:
    made, _ = exporter(store, config)
    state.position.trained_sequence = 0
    made.export(state)
    store.write("bundles/PIN", b"\xff")
    [window] = WindowLog(store).committed()
    made.review(window, SharedWindow.read(WindowLog(store), window, config, Workers()))
    assert "could not be tested on window" in caplog.text
