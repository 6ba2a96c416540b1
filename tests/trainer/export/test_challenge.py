"""When a challenger is served to all: by the verdict, at the trainer of its line."""

import logging

import numpy as np
import pytest

from tests.contracts.test_bundle import write
from weir.contracts import Pin, Store
from weir.contracts.comparison import Comparison
from weir.contracts.confidence import Running
from weir.contracts.variants import CHAMPION, MAIN, Champion, crown, log_of, version_of
from weir.trainer.config import TrainerConfig
from weir.trainer.export.challenge import Challenge
from weir.trainer.export.gate import PairedGate

CONFIG = TrainerConfig(promote_by="recall")


def compared(store: Store, difference: float, champion: str = MAIN) -> None:
    """Store a comparison in which every user of 1,000 found the challenger better by so much."""
    for variant in (MAIN, "new"):
        write(log_of(store, variant), version_of("0001", variant), created_at=1.0)
        log_of(store, variant).promote(version_of("0001", variant))
    differences = Running().add(np.full(1000, (difference + 1) / 2))
    Comparison(champion=champion, challenger="new", differences=differences).write(store)


def challenge(store: Store, config: TrainerConfig = CONFIG, variant: str = "new") -> Challenge:
    return Challenge(store, config, PairedGate.of(config), variant)


def test_a_better_challenger_becomes_the_champion_once(store: Store) -> None:
    compared(store, 0.5)
    champion = challenge(store).decide()
    assert champion is not None
    assert (champion.variant, champion.beaten, champion.by) == ("new", (MAIN,), "the trainer")
    assert champion.verdict.startswith("better: recall@20 as served of new")
    assert Champion.read(store) == champion
    assert challenge(store).decide() is None


@pytest.mark.parametrize("difference", [0.0, -0.5])
def test_one_that_is_not_better_does_not(store: Store, difference: float) -> None:
    compared(store, difference)
    assert challenge(store).decide() is None
    assert not store.exists(CHAMPION)


def test_without_the_setting_an_operator_decides(store: Store) -> None:
    compared(store, 0.5)
    assert challenge(store, TrainerConfig()).decide() is None
    assert challenge(store, TrainerConfig(promote_by="clicks")).decide() is None
    assert not store.exists(CHAMPION)


@pytest.mark.parametrize("line", [MAIN, "new"])
def test_a_pin_of_either_line_keeps_the_champion(store: Store, line: str) -> None:
    compared(store, 0.5)
    log_of(store, line).set_pin(Pin(version=version_of("0001", line), by="ann@shop", at=1.0))
    assert challenge(store).decide() is None
    log_of(store, line).lift_pin()
    assert challenge(store).decide() is not None


def test_a_comparison_with_another_champion_decides_nothing(store: Store) -> None:
    compared(store, 0.5, champion="older")
    assert challenge(store).decide() is None


def test_one_that_was_replaced_does_not_come_back_by_old_evidence(store: Store) -> None:
    compared(store, 0.5)
    assert challenge(store).decide() is not None
    crown(store, MAIN, "ann@shop", "it was a mistake")
    assert challenge(store).decide() is None


def test_it_looks_every_few_seconds(store: Store) -> None:
    now = 100.0
    made = Challenge(store, CONFIG, PairedGate.of(CONFIG), "new", clock=lambda: now)
    assert made.decide() is None
    compared(store, 0.5)
    assert made.decide() is None
    now += 5
    assert made.decide() is not None


def test_damage_is_logged_once_and_stops_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.write("variants/new/COMPARISON.json", b"{}")
    now = 0.0
    made = Challenge(store, CONFIG, PairedGate.of(CONFIG), "new", clock=lambda: now)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert made.decide() is None
            now += 10
    assert caplog.text.count("it is not known whether new is to be served to all") == 1
