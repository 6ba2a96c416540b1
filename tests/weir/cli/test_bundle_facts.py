import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.contracts.test_bundle import write
from weir.cli.bundle_facts import facts_of
from weir.cli.main import app
from weir.contracts import BundleLog, Pin, Store, Withdrawal

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
