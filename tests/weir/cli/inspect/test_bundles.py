""""""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.contracts.bundles.test_bundle_log import write
from tests.serving.monitor.test_attribution import serve
from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from tests.weir.cli.interactions import refused, told, weir
from weir.cli.inspect import bundles as served_facts
from weir.cli.inspect.bundles import facts_of
from weir.cli.main import app
from weir.contracts import BundleLog, Pin, Store, WindowLog, Withdrawal
from weir.contracts.base.statistics import Running
from weir.contracts.bundles.variants import MAIN, Champion, Comparison, crown, line_of, log_of, version_of
from weir.contracts.served_lists import new_segment

PIN = Pin(version="0001", by="ann@shop", at=1.8e9, why="0003 repeats itself")


@pytest.fixture
def log(tmp_path: Path) -> BundleLog:
    """Return a promoted, a held and a withdrawn bundle."""
    log = BundleLog(Store(str(tmp_path / "store")))
    write(log, "0001", created_at=1.0, verdict="promoted: the first bundle")
    write(log, "0002", created_at=2.0, promoted=False, verdict="held: recall fell")
    write(log, "0003", created_at=3.0, verdict="promoted: recall is fine")
    log.withdraw(
        Withdrawal(
            version="0003", fallback="0001", window="w", sequence=7, cases=300, at=3.5, verdict="rolled back: it fell"
        )
    )
    log.promote("0001")
    return log


def inspect(log: BundleLog, *more: str) -> str:
    result = CliRunner().invoke(app, ["inspect", "bundles", "--store", log.store.url, *more], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_it_says_what_became_of_each_bundle_and_why(log: BundleLog) -> None:
    shown = inspect(log)
    assert "current: 0001" in shown
    for line in ("0001: promoted: the first bundle", "0002: held: recall fell", "0003: rolled back: it fell"):
        assert line in shown
    assert [bundle.standing for bundle in facts_of(log.store, 9).bundles] == ["promoted", "held", "withdrawn"]
    assert [bundle.version for bundle in facts_of(log.store, 2).bundles] == ["0002", "0003"]


def test_it_shows_the_pin(log: BundleLog) -> None:
    log.set_pin(PIN)
    assert f"{PIN.sentence}; `weir promote --unpin` removes it" in inspect(log)
    first, *_ = json.loads(inspect(log, "--json"))
    assert (first["version"], first["current"], first["pinned"], first["standing"]) == ("0001", True, True, "pinned")


@pytest.mark.parametrize("name", ["CURRENT", "PIN", "0001/MANIFEST.json", "0003/VERDICT.json"])
def test_damage_is_told_and_ends_nothing(log: BundleLog, name: str) -> None:
    log.set_pin(PIN)
    log.store.write(f"bundles/{name}", b"\x00")
    shown = inspect(log)
    assert f"bundles/{name}: " in shown
    assert "0002: held: recall fell" in shown
    assert len(json.loads(inspect(log, "--json"))) == 3
    told = CliRunner().invoke(app, ["inspect", "bundles", "--store", log.store.url, "--json"])
    assert f"bundles/{name}: " in told.output


def test_a_bundle_retired_between_listing_and_reading_is_left_out(
    log: BundleLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BundleLog, "versions", lambda _log: ["0000", "0001", "0002"])
    assert [bundle.version for bundle in facts_of(log.store, 9).bundles] == ["0001", "0002"]


def test_a_retraining_is_newer_than_what_it_replaces(log: BundleLog) -> None:
    write(log, "0000", created_at=9.0)
    assert [bundle.version for bundle in facts_of(log.store, 1).bundles] == ["0000"]


def test_every_version_that_it_prints_can_be_asked_for(log: BundleLog) -> None:
    log.set_pin(PIN)
    for version in set(re.findall(r"\b000\d\b", inspect(log))):
        shown = inspect(log, version)
        assert f"{version} in " in shown
        assert re.search(r"trained window +\S+", shown)
        assert [bundle["version"] for bundle in json.loads(inspect(log, version, "--json"))] == [version]
    gone = CliRunner().invoke(app, ["inspect", "bundles", "0009", "--store", log.store.url])
    assert (gone.exit_code, "holds no bundle 0009: old ones are retired" in gone.output) == (1, True)


T = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A list of two hours ago, two of now, of two bundles, of which one is gone."""
    store, catalogue = Store(str(tmp_path / "store")), Catalogue.random(20)
    write_bundle(store, "v2", catalogue)
    old, _ = serve(store, "item-5", segment=new_segment(time.time() - 7200), version="v1")
    first, _ = serve(store, "item-1", "item-2", version="v2")
    serve(store, "item-3", version="v2")
    events = [
        (old, "item-5"),
        (first, "item-2"),
        (first, "item-2"),
        (first, "item-9"),
        (None, "item-1"),
        ("odd", "item-1"),
    ]
    write_window(store, 0, [Event("ann", item, T, (), 1, token) for token, item in events])
    return store


def test_bundles_positions_and_outcomes(store: Store) -> None:
    facts = told(weir("inspect", "served", "--store", store.url, "--json"))
    assert (facts["files"], facts["lists"]) == (3, 3)
    assert facts["events"] == {"joined": 2, "not_kept": 1, "other_item": 1, "repeated": 1}
    gone, served = facts["bundles"]
    assert (gone["bundle"], gone["click_through"], gone["coverage"]) == ("v1", 1.0, None)
    assert (served["bundle"], served["lists"], served["clicked_lists"]) == ("v2", 2, 1)
    assert (served["click_through"], served["items_shown"], served["coverage"]) == (0.5, 3, 3 / 20)
    assert facts["positions"] == [
        {"position": 1, "shown": 3, "clicked": 1, "click_through": 1 / 3},
        {"position": 2, "shown": 1, "clicked": 1, "click_through": 1.0},
    ]
    less = told(weir("inspect", "served", "--store", store.url, "--since", "30m", "--positions", "1", "--json"))
    assert less["lists"] <= 3
    assert [one["bundle"] for one in less["bundles"]] == ["v2"]
    assert less["events"]["unknown_list"] == 1
    assert len(less["positions"]) == 1


def test_a_table_for_people(store: Store) -> None:
    shown = weir("inspect", "served", "--store", store.url).stdout
    assert "3 lists served in the last 24h" in shown
    assert "50.00%" in shown
    assert "by position" in shown
    assert "positive events with a token: joined 2, not kept 1, other item 1, repeated 1" in shown


def test_lines_are_told_apart(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    write_window(store, 0, [])
    token, _ = serve(store, "item-1", version="v1--new")
    serve(store, "item-1", "item-2")
    serve(store, "item-1", version="v2--new")
    write_window(store, 1, [Event("ann", "item-1", T, token=token)])
    facts = told(weir("inspect", "served", "--store", store.url, "--json"))
    assert {one["bundle"]: one["variant"] for one in facts["bundles"]} == {
        "v1--new": "new",
        "v2--new": "new",
        "v1": "main",
    }
    lines = {one["variant"]: (one["lists"], one["clicked_lists"], one["click_through"]) for one in facts["variants"]}
    assert lines == {"new": (2, 1, 0.5), "main": (1, 0, 0.0)}
    assert "by line" in weir("inspect", "served", "--store", store.url).stdout


def test_nothing_and_nonsense(tmp_path: Path) -> None:
    write_window(Store(str(tmp_path / "store")), 0, [])
    empty = weir("inspect", "served", "--store", tmp_path / "store")
    assert (empty.exit_code, "holds no lists served in the last 24h" in empty.stdout) == (0, True)
    facts = told(weir("inspect", "served", "--store", tmp_path / "store", "--json"))
    assert facts == {"files": 0, "lists": 0, "events": {}, "bundles": [], "variants": [], "positions": []}
    assert "--since is 'soon', but must be" in refused(
        weir("inspect", "served", "--store", tmp_path / "store", "--since", "soon"), 2
    )


def test_a_damaged_file_is_named(store: Store) -> None:
    _, file = serve(store, "item-4")
    store.write(file.name, b"PAR1")
    assert file.name in refused(weir("inspect", "served", "--store", store.url), 1)


def test_only_windows_that_may_name_the_lists_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_facts, "_FIRST", 2)
    begin = time.time()
    for sequence in range(1, 8):
        write_window(store, sequence, [])
    found = served_facts._committed_since(WindowLog(store), begin)
    assert [manifest.sequence for manifest in found] == list(range(1, 8))
    assert len(served_facts._committed_since(WindowLog(store), 0.0)) == 8
    assert served_facts._committed_since(WindowLog(store), time.time() + 1) == []


NEW = ("--set", "trainer.variants.new.seed=7")


@pytest.fixture
def variant_store(tmp_path: Path) -> Store:
    variant_store = Store(str(tmp_path / "store"))
    for variant in (MAIN, "new"):
        name = version_of("0001", variant)
        write(log_of(variant_store, variant), name, variant=variant, created_at=1.0, evaluation={"recall@20": 0.25})
        log_of(variant_store, variant).promote(name)
    return variant_store


def compare(variant_store: Store, difference: float) -> Comparison:
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
    made.write(variant_store)
    return made


def test_roles_and_the_verdict_are_shown(variant_store: Store) -> None:
    found = compare(variant_store, 0.5).measured("recall")
    facts = told(weir("inspect", "variants", "--store", variant_store.url, *NEW, "--json"))
    assert (facts["champion"], facts["challenger"], facts["promotion"]) == (MAIN, "new", None)
    assert [(one["variant"], one["role"], one["bundle"]) for one in facts["variants"]] == [
        (MAIN, "champion", "0001"),
        ("new", "challenger", "0001--new"),
    ]
    recall, clicks = facts["comparison"]["measures"]
    assert (recall["measure"], recall["verdict"], recall["units"]) == ("recall", "better", 900)
    assert (recall["difference_low"], recall["difference_high"]) == tuple(found.interval)
    assert (clicks["measure"], clicks["verdict"], clicks["units"]) == ("clicks", "not yet", 0)
    shown = weir("inspect", "variants", "--store", variant_store.url, *NEW).stdout
    assert "new against main: 5 windows" in shown
    assert f"{found.interval.low:+.4f} to {found.interval.high:+.4f}" in shown
    assert "events that recall was not compared on: 12 not loaded" in shown


def test_before_there_is_anything_to_compare(variant_store: Store) -> None:
    shown = weir("inspect", "variants", "--store", variant_store.url, *NEW).stdout
    assert "new has not been compared yet: `weir monitor` does" in shown
    shown = weir("inspect", "variants", "--store", variant_store.url).stdout
    assert "main has no challenger" in shown
    # The line of a variant that the settings do not name any more has no role.
    facts = told(weir("inspect", "variants", "--store", variant_store.url, "--json"))
    assert [(one["variant"], one["role"]) for one in facts["variants"]] == [(MAIN, "champion"), ("new", None)]


def test_an_operator_promotes_a_line_whatever_the_verdict(variant_store: Store) -> None:
    compare(variant_store, -0.5)
    done = weir("promote", "--variant", "new", "--why", "it is cheaper", "--store", variant_store.url, *NEW)
    assert done.exit_code == 0, done.output
    assert "worse: recall@20 as served of new" in done.stdout
    assert "new is served to all" in done.stdout
    champion = Champion.read(variant_store)
    assert (champion.variant, champion.beaten) == ("new", (MAIN,))
    assert champion.verdict.startswith("it is cheaper; worse: recall@20")
    shown = weir("inspect", "variants", "--store", variant_store.url, *NEW).stdout
    assert f"new was promoted by {champion.by} at " in shown
    again = weir("promote", "--variant", "new", "--store", variant_store.url, *NEW)
    assert "new is served to all already" in again.stdout
    back = weir("promote", "--variant", MAIN, "--store", variant_store.url, *NEW)
    assert back.exit_code == 0, back.output
    # What was found before stays known, whichever line is served.
    assert "worse: recall@20 as served of new" in back.stdout
    champion = Champion.read(variant_store)
    assert champion.variant == MAIN
    assert "worse: recall@20 as served of new" in champion.verdict
    shown = weir("inspect", "variants", "--store", variant_store.url, *NEW).stdout
    assert "main has no challenger" in shown
    assert "new against main: 5 windows" in shown


def test_lines_that_were_not_compared_with_each_other_are_said_to_be_so(variant_store: Store) -> None:
    done = weir("promote", "--variant", "new", "--store", variant_store.url, *NEW)
    assert "it was not compared with main" in done.stdout


def test_only_lines_that_can_be_served_are_promoted(variant_store: Store) -> None:
    unknown = refused(weir("promote", "--variant", "newer", "--store", variant_store.url, *NEW), 2)
    assert "trainer.variants: there is no newer; allowed: main, new" in unknown
    log_of(variant_store, "new").store.remove("bundles/CURRENT")
    empty = refused(weir("promote", "--variant", "new", "--store", variant_store.url, *NEW), 2)
    assert "variants/new/bundles: holds no promoted bundle of new" in empty


def test_a_champion_without_settings_is_named(variant_store: Store) -> None:
    crown(variant_store, "new", "ann@shop", "better")
    problem = refused(weir("inspect", "variants", "--store", variant_store.url), 2)
    assert "new is served to all, but trainer.variants has no such variant" in problem
    assert weir("promote", "--variant", MAIN, "--store", variant_store.url).exit_code == 0


@pytest.mark.parametrize("arguments", [(), ("0001", "--variant", "new"), ("0001", "--unpin")])
def test_promote_does_one_thing_at_a_time(variant_store: Store, arguments: tuple[str, ...]) -> None:
    assert "one of the three" in refused(weir("promote", *arguments, "--store", variant_store.url, *NEW), 2)


def test_pins_are_those_of_a_line(variant_store: Store) -> None:
    write(log_of(variant_store, "new"), "0002--new", variant="new", created_at=2.0)
    assert weir("promote", "0002--new", "--store", variant_store.url, *NEW).exit_code == 0
    pin = log_of(variant_store, "new").pin()
    assert isinstance(pin, Pin)
    assert pin.version == "0002--new"
    assert log_of(variant_store, MAIN).pin() is None
    shown = weir("inspect", "bundles", "--store", variant_store.url).stdout
    assert "`weir promote --unpin --variant new` removes it" in shown
    assert "current of new: 0002--new" in shown
    assert weir("promote", "--unpin", "--variant", "new", "--store", variant_store.url, *NEW).exit_code == 0
    assert log_of(variant_store, "new").pin() is None


def test_bundles_of_all_lines_are_listed(variant_store: Store) -> None:
    facts = told(weir("inspect", "bundles", "--store", variant_store.url, "--json"))
    assert {one["version"]: (one["variant"], one["current"]) for one in facts} == {
        "0001": (MAIN, True),
        "0001--new": ("new", True),
    }
    one = told(weir("inspect", "bundles", "0001--new", "--store", variant_store.url, "--json"))
    assert [bundle["version"] for bundle in one] == ["0001--new"]
    assert line_of(variant_store, "new").exists("bundles/0001--new")
