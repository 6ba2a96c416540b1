"""``weir check``, ``init``, ``config`` and ``settings``: where settings come from, what is refused, how they change."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from tests.readers.files import Event, write_lines
from tests.serving.support import Catalogue, write_bundle
from tests.weir.cli.interactions import refused, told
from tests.weir.cli.interactions import weir as run
from weir.cli.main import app
from weir.contracts import FeatureNames, Store, WindowLog
from weir.pipelines.batch.ingest import ingest
from weir.serving import server as serving_server
from weir.serving.bundles.catalogue import CatalogueFiles

DOC = Path(__file__).parents[3] / "docs/change-a-store.md"
EVENTS = [
    Event(f"u{n % 5}", f"i{n % 7}", 90 * n, ("click", "skip")[n % 2], genre=("jazz",), price=2.0) for n in range(80)
]
SETTINGS = """\
catalogue: items.jsonl
pipeline:
  event_types: {click: positive, skip: negative}
  item_features: {categorical: [genre], dense: [price]}
  window_seconds: 600
  allowed_lateness_seconds: 300
  retention_days: 3
"""
QUIET = ("--set", "pipeline.metrics_port=0")


def weir(*arguments: str) -> Result:
    """Run a command with metrics of its own, as a process has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ingest.__kwdefaults__, "registry", CollectorRegistry())
        return run(*arguments)


@pytest.fixture
def log() -> Path:
    """A store S, a file of its settings and the rest of its log L, in the folder of the test."""
    Path("weir.yaml").write_text(SETTINGS)
    Path("items.jsonl").write_text('{"item_id": "i1", "tags": ["new"]}\n')
    write_lines(Path("L/a.jsonl"), [event.line() for event in EVENTS[:50]])
    done = told(weir("ingest", "--store", "S", "--config", "weir.yaml", "--log", "L", *QUIET, "--json"))
    assert (done["valid"], done["dead"]) == (50, 0)
    return Path("L/a.jsonl")


def labels(store: str) -> Counter[int]:
    log = WindowLog(Store(store))
    return Counter(one for pane in log.committed() for one in log.all_examples(pane)["label"].to_pylist())


def served(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[CatalogueFiles, str]:
    """Return the files that a server of these arguments follows, and what it says of them."""
    found: list[CatalogueFiles] = []
    with monkeypatch.context() as patch:
        patch.setattr(serving_server, "serve", lambda _, __, files, ___: found.append(files))
        result = weir("serve", *arguments)
    assert result.exit_code == 0, result.output
    return found[0], result.stderr


def test_the_log_goes_on_after_the_commands_of_the_page_on_rebuilds(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips stay negatives, features stay in the windows, and the server has the catalogue."""
    first, then = re.findall(r"```\n(\$ weir rebuild.*?)```", DOC.read_text(), re.DOTALL)[:2]
    rebuild, *_ = first.splitlines()
    for line in (rebuild, *then.splitlines()):
        words = shlex.split(line.removeprefix("$ weir").split("  #")[0])
        if "--cut-over" in words:
            write_bundle(Store("T"), "v1", Catalogue.random())
        if words[0] == "ingest":
            write_lines(log, [event.line() for event in EVENTS[50:]])
            words += QUIET
        # A test has an end.
        result = weir(*(word for word in words if word != "--follow"))
        assert result.exit_code == 0, (line, result.output)
    assert labels("T") == Counter({1: 40, -1: 40})
    panes = WindowLog(Store("T")).committed()
    assert {pane.item_features for pane in panes} == {FeatureNames(categorical=("genre",), dense=("price",))}
    assert {pane.end_ms - pane.start_ms for pane in panes} == {3_600_000}
    files, _ = served(monkeypatch, "--store", "T")
    assert files.catalogue == str(Path("items.jsonl").resolve())
    assert files.features == FeatureNames(categorical=("genre",), dense=("price",))
    values = {name: told(weir("settings", "--store", name, "--json"))["values"] for name in ("S", "T")}
    assert values["T"] == values["S"] | {"pipeline.window_seconds": 3600}


def test_stages_take_the_settings_of_the_store_and_refuse_others_by_name_and_source(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = '{"click": "positive"}'
    Path("other.yaml").write_text(f"pipeline: {{event_types: {types}, window_seconds: 60}}")
    for command in (["ingest", "--log", "L"], ["train"], ["serve"], ["monitor"], ["retire", "--dry-run"], ["up"]):
        given = [*command, "--store", "S"]
        both = weir(*given, "--config", "other.yaml")
        assert both.exit_code == 2, both.output
        for name in ("event_types", "window_seconds"):
            assert re.search(rf"pipeline\.{name} is .* \(other\.yaml\), but S was written with", both.stderr)
        line = weir(*given, "--set", f"pipeline.event_types={types}").stderr
        assert "(command line)" in line
        env = {"WEIR_PIPELINE__EVENT_TYPES": types}
        assert "(environment)" in CliRunner().invoke(app, given, env=env).stderr
    assert "catalogue is null (command line)" in weir("serve", "--store", "S", "--set", "catalogue=null").stderr
    # What is the same is no contradiction, nor is a part of a section.
    files, _ = served(
        monkeypatch, "--store", "S", "--config", "weir.yaml", "--set", "pipeline.item_features.dense=[price]"
    )
    assert files.features.all == ("genre", "price")
    # Windows may still be open: their length is the store's, where the default is a day.
    assert "windows stay open for 900 s" in refused(weir("retire", "--store", "S", "--older-than", "800s"), 2)
    assert told(weir("retire", "--store", "S", "--older-than", "1000s", "--dry-run", "--json"))["held_back"] >= 0
    # Commands that only look at a log may try others.
    assert weir("check", "L", "--store", "S", "--set", f"pipeline.event_types={types}").exit_code == 0


def test_the_command_that_a_refusal_names_changes_the_setting(log: Path) -> None:
    write_lines(log, [event.line() for event in EVENTS[50:]])
    given = ["ingest", "--store", "S", "--log", "L", *QUIET, "--json"]
    wanted = ("--set", "pipeline.event_types={click: positive, skip: ignore}")
    line = weir(*given, *wanted).stderr
    found = re.search(r"`weir (settings .*?)`", line)
    assert found is not None, line
    said = weir(*shlex.split(found[1]))
    assert said.exit_code == 0, said.output
    assert "windows that start at 2023-11-14T" in said.stdout
    assert told(weir(*given, *wanted))["ignored"] == 15
    assert labels("S") == Counter({1: 40, -1: 25})
    shown = told(weir("settings", "--store", "S", "--json"))
    assert [one["after"] for one in shown["changes"]] == [
        {"pipeline.event_types": {"click": "positive", "skip": "ignore"}}
    ]


def test_a_mapping_as_a_whole_replaces_and_a_part_of_it_adds(log: Path) -> None:
    def change(*assign: str) -> Any:
        found = told(weir("settings", "--store", "S", *(w for one in assign for w in ("--set", one)), "--json"))
        return found.get("after")

    assert change("pipeline.event_types.view=ignore") == {
        "pipeline.event_types": {"click": "positive", "skip": "negative", "view": "ignore"}
    }
    assert change("pipeline.event_types={play: positive}", "catalogue=null") == {
        "pipeline.event_types": {"play": "positive"},
        "catalogue": None,
    }
    assert change("catalogue=null") is None
    assert change("pipeline.item_features.dense=[]") == {
        "pipeline.item_features": {"categorical": ["genre"], "dense": []}
    }
    before = told(weir("settings", "--store", "S", "--json"))
    for wrong in (
        "pipeline.window_seconds=60",
        "pipeline.poll_seconds=3",
        "trainer.seed=3",
        "pipeline.retention_days=0.001",
    ):
        assert weir("settings", "--store", "S", "--set", wrong).exit_code in {1, 2}, wrong
    assert told(weir("settings", "--store", "S", "--json")) == before
    assert "there is no such store" in refused(weir("settings", "--store", "none"), 1)


def test_what_weir_up_remembers_for_its_processes_is_weaker_than_the_store(log: Path) -> None:
    shown = told(weir("config", "show", "--store", "S", "--json"))
    file = Path("S/state/settings.json")
    file.write_text(json.dumps(shown | {"trainer": {"seed": 77}}))
    told(weir("settings", "--store", "S", "--set", "catalogue=null", "--set", "pipeline.seen_items=7", "--json"))
    for given in ([], ["--config", str(file)]):
        found = told(weir("config", "show", "--store", "S", *given, "--json"))
        assert (found["catalogue"], found["pipeline"]["seen_items"], found["trainer"]["seed"]) == (None, 7, 77)
    Path("copy.json").write_text(file.read_text())
    assert weir("config", "show", "--store", "S", "--config", "copy.json").exit_code == 2


def test_a_catalogue_that_has_moved_is_told_with_the_way_to_name_it(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("items.jsonl").rename("moved.jsonl")
    _, told_of = served(monkeypatch, "--store", "S")
    found = re.search(r"which is not there.*(weir settings .*)", told_of)
    assert found is not None
    said = weir(*shlex.split(found[1].replace("PLACE", "moved.jsonl"))[1:])
    assert said.exit_code == 0, said.output
    files, told_of = served(monkeypatch, "--store", "S")
    assert (files.catalogue, "which is not there" in told_of) == (str(Path("moved.jsonl").resolve()), False)


def test_damaged_settings_are_named(log: Path) -> None:
    path = Path("S/SETTINGS.json")
    path.write_bytes(path.read_bytes()[:100])
    assert "SETTINGS.json" in refused(weir("train", "--store", "S"), 1)
    [found] = json.loads(weir("verify", "--store", "S", "--json").stdout)["findings"]
    assert found["name"] == "SETTINGS.json"
    path.unlink()
    assert "SETTINGS.json: is missing" in refused(weir("ingest", "--store", "S", "--log", "L", *QUIET), 1)
    # Without a copy they are named again.
    told(weir("settings", "--store", "S", "--set", "pipeline.event_types={click: positive, skip: negative}", "--json"))
    assert told(weir("ingest", "--store", "S", "--log", "L", *QUIET, "--json"))["dead"] == 0


SHOP = "customer,sku,bought\n" + "".join(f"c{n},s{n},2025-01-{n + 1:02}\n" for n in range(28))
COLUMNS = ["pipeline.columns.user_id=customer", "pipeline.columns.item_id=sku", "pipeline.columns.timestamp=bought"]


def run_check(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == status, result.output
    return result.stdout


def test_check_says_with_its_status_whether_a_log_can_be_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text(SHOP)
    report = json.loads(run_check("check", str(path), "--json", status=1))
    assert report["settings"] == [*COLUMNS, "pipeline.time_zone=UTC"]
    given = [part for setting in report["settings"] for part in ("--set", setting)]
    shown = run_check("check", str(path), *given)
    assert "100 %" in shown
    assert f"= window {report['window_seconds'] // 3600} h + lateness 5 s + " in shown


def test_check_says_which_columns_are_features(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    row = {"user_id": "u", "item_id": "i", "timestamp": 1_700_000_000, "genre": "jazz", "country": "de", "age": 31}
    path.write_text(json.dumps(row) + "\n")
    named = ["pipeline.item_features={categorical: [genre]}", "pipeline.user_features={categorical: [country]}"]
    given = [part for one in named for part in ("--set", one)]
    report = json.loads(run_check("check", str(path), *given, "--json"))
    read_as = {column["name"]: column["read_as"] for column in report["columns"]}
    assert (read_as["genre"], read_as["country"], read_as["age"]) == ("item feature", "user feature", None)


def test_init_prints_a_file_that_check_is_content_with(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text(SHOP)
    (tmp_path / "weir.yaml").write_text(run_check("init", str(path)))
    run_check("config", "check", str(tmp_path / "weir.yaml"))
    report = json.loads(run_check("check", str(path), "--config", str(tmp_path / "weir.yaml"), "--json"))
    assert (report["valid_before"], report["settings"]) == (28, [])


def test_the_commands_that_check_prints_can_be_pasted(tmp_path: Path) -> None:
    log = tmp_path / "it's a log\n#1.jsonl"
    rows = ({"#user": f"u{n % 6}", "item: id": f"i{n % 9}", "time": 1_764_000_000 + n} for n in range(60))
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    shown = run_check("check", str(log), status=1)
    init = re.search(r"or: (.* init .* > weir\.yaml)$", shown, re.MULTILINE)
    again = [f"--set {line}" for line in re.findall(r"^  --set (.*)$", shown, re.MULTILINE)]
    assert init is not None
    assert len(again) == 3
    weir = init[1].split(" init ")[0]
    path = init[1].split(" init ")[1].removesuffix(" > weir.yaml")
    script = f"{init[1]}\n{weir} check {path} --config weir.yaml --json\n{weir} check {path} {' '.join(again)} --json"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    pasted = subprocess.run(
        ["sh", "-ec", script], check=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    decoder = json.JSONDecoder()
    by_file, end = decoder.raw_decode(pasted.stdout)
    by_options, _ = decoder.raw_decode(pasted.stdout[end:].lstrip())
    assert by_file == by_options
    assert (by_file["valid_before"], by_file["settings"]) == (60, [])
