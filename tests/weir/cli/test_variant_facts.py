"""What the command line says of lines and their comparison, and that it lets an operator decide."""

from pathlib import Path

import numpy as np
import pytest

from tests.contracts.test_bundle import write
from tests.weir.cli.interactions import refused, told, weir
from weir.contracts import Pin, Store
from weir.contracts.comparison import Comparison
from weir.contracts.confidence import Running
from weir.contracts.variants import MAIN, Champion, crown, line_of, log_of, version_of

NEW = ("--set", "trainer.variants.new.seed=7")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "store"))
    for variant in (MAIN, "new"):
        name = version_of("0001", variant)
        write(log_of(store, variant), name, variant=variant, created_at=1.0, evaluation={"recall@20": 0.25})
        log_of(store, variant).promote(name)
    return store


def compare(store: Store, difference: float) -> Comparison:
    made = Comparison(
        champion=MAIN,
        challenger="new",
        started_at=1.0,
        sequence=4,
        windows=5,
        hits={MAIN: Running().add(np.full(900, 0.5)), "new": Running().add(np.full(900, 0.5 + difference))},
        differences=Running().add(np.full(900, (difference + 1) / 2)),
        skipped={"not_loaded": 12},
    )
    made.write(store)
    return made


def test_roles_and_the_verdict_are_shown(store: Store) -> None:
    found = compare(store, 0.5).measured("recall")
    facts = told(weir("inspect", "variants", "--store", store.url, *NEW, "--json"))
    assert (facts["champion"], facts["challenger"], facts["promotion"]) == (MAIN, "new", None)
    assert [(one["variant"], one["role"], one["bundle"]) for one in facts["variants"]] == [
        (MAIN, "champion", "0001"),
        ("new", "challenger", "0001--new"),
    ]
    recall, clicks = facts["comparison"]["measures"]
    assert (recall["measure"], recall["verdict"], recall["units"]) == ("recall", "better", 900)
    assert (recall["difference_low"], recall["difference_high"]) == tuple(found.interval)
    assert (clicks["measure"], clicks["verdict"], clicks["units"]) == ("clicks", "not yet", 0)
    shown = weir("inspect", "variants", "--store", store.url, *NEW).stdout
    assert "new against main: 5 windows" in shown
    assert f"{found.interval.low:+.4f} to {found.interval.high:+.4f}" in shown
    assert "events that recall was not compared on: 12 not loaded" in shown


def test_before_there_is_anything_to_compare(store: Store) -> None:
    shown = weir("inspect", "variants", "--store", store.url, *NEW).stdout
    assert "new has not been compared yet: `weir monitor` does" in shown
    shown = weir("inspect", "variants", "--store", store.url).stdout
    assert "main has no challenger" in shown
    # The line of a variant that the settings do not name any more has no role.
    facts = told(weir("inspect", "variants", "--store", store.url, "--json"))
    assert [(one["variant"], one["role"]) for one in facts["variants"]] == [(MAIN, "champion"), ("new", None)]


def test_an_operator_promotes_a_line_whatever_the_verdict(store: Store) -> None:
    compare(store, -0.5)
    done = weir("promote", "--variant", "new", "--why", "it is cheaper", "--store", store.url, *NEW)
    assert done.exit_code == 0, done.output
    assert "worse: recall@20 as served of new" in done.stdout
    assert "new is served to all" in done.stdout
    champion = Champion.read(store)
    assert (champion.variant, champion.beaten) == ("new", (MAIN,))
    assert champion.verdict.startswith("it is cheaper; worse: recall@20")
    shown = weir("inspect", "variants", "--store", store.url, *NEW).stdout
    assert f"new was promoted by {champion.by} at " in shown
    again = weir("promote", "--variant", "new", "--store", store.url, *NEW)
    assert "new is served to all already" in again.stdout
    back = weir("promote", "--variant", MAIN, "--store", store.url, *NEW)
    assert back.exit_code == 0, back.output
    # What was found before stays known, whichever line is served.
    assert "worse: recall@20 as served of new" in back.stdout
    champion = Champion.read(store)
    assert champion.variant == MAIN
    assert "worse: recall@20 as served of new" in champion.verdict
    shown = weir("inspect", "variants", "--store", store.url, *NEW).stdout
    assert "main has no challenger" in shown
    assert "new against main: 5 windows" in shown


def test_lines_that_were_not_compared_with_each_other_are_said_to_be_so(store: Store) -> None:
    done = weir("promote", "--variant", "new", "--store", store.url, *NEW)
    assert "it was not compared with main" in done.stdout


def test_only_lines_that_can_be_served_are_promoted(store: Store) -> None:
    unknown = refused(weir("promote", "--variant", "newer", "--store", store.url, *NEW), 2)
    assert "trainer.variants: there is no newer; allowed: main, new" in unknown
    log_of(store, "new").store.remove("bundles/CURRENT")
    empty = refused(weir("promote", "--variant", "new", "--store", store.url, *NEW), 2)
    assert "variants/new/bundles: holds no promoted bundle of new" in empty


def test_a_champion_without_settings_is_named(store: Store) -> None:
    crown(store, "new", "ann@shop", "better")
    problem = refused(weir("inspect", "variants", "--store", store.url), 2)
    assert "new is served to all, but trainer.variants has no such variant" in problem
    assert weir("promote", "--variant", MAIN, "--store", store.url).exit_code == 0


@pytest.mark.parametrize("arguments", [(), ("0001", "--variant", "new"), ("0001", "--unpin")])
def test_promote_does_one_thing_at_a_time(store: Store, arguments: tuple[str, ...]) -> None:
    assert "one of the three" in refused(weir("promote", *arguments, "--store", store.url, *NEW), 2)


def test_pins_are_those_of_a_line(store: Store) -> None:
    write(log_of(store, "new"), "0002--new", variant="new", created_at=2.0)
    assert weir("promote", "0002--new", "--store", store.url, *NEW).exit_code == 0
    pin = log_of(store, "new").pin()
    assert isinstance(pin, Pin)
    assert pin.version == "0002--new"
    assert log_of(store, MAIN).pin() is None
    shown = weir("inspect", "bundles", "--store", store.url).stdout
    assert "`weir promote --unpin --variant new` removes it" in shown
    assert "current of new: 0002--new" in shown
    assert weir("promote", "--unpin", "--variant", "new", "--store", store.url, *NEW).exit_code == 0
    assert log_of(store, "new").pin() is None


def test_bundles_of_all_lines_are_listed(store: Store) -> None:
    facts = told(weir("inspect", "bundles", "--store", store.url, "--json"))
    assert {one["version"]: (one["variant"], one["current"]) for one in facts} == {
        "0001": (MAIN, True),
        "0001--new": ("new", True),
    }
    one = told(weir("inspect", "bundles", "0001--new", "--store", store.url, "--json"))
    assert [bundle["version"] for bundle in one] == ["0001--new"]
    assert line_of(store, "new").exists("bundles/0001--new")
