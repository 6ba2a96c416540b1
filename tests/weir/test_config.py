""""""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st

from weir.cli.terminal.output import commented
from weir.config import Settings, SettingsError, assignments, load_settings, schema_text
from weir.contracts import Store
from weir.freshness import event_to_answer, longest, waits
from weir.pipelines.config import PipelineConfig
from weir.pipelines.layout import with_window
from weir.pipelines.stream.config import StreamConfig
from weir.serving.config import ServingConfig
from weir.trainer.settings.trainer import TrainerConfig

README = Path(__file__).parents[2] / "README.md"
TOPIC = "kafka://broker:9092/clicks"


DEFAULTS = load_settings()


@trials(max_examples=50)
@given(
    window=st.integers(1, 100_000),
    late=st.integers(0, 1000),
    polls=st.tuples(*[st.integers(1, 9)] * 4),
    windows=st.integers(1, 5),
    every=st.none() | st.integers(1, 500),
    engine=st.booleans(),
)
def test_the_time_is_the_sum_of_the_waits_that_the_settings_ask_for(
    window: int, late: int, polls: tuple[int, ...], windows: int, every: int | None, *, engine: bool
) -> None:
    log, trainer, server, checkpoint = polls
    sections = {
        "pipeline": PipelineConfig(window_seconds=window, allowed_lateness_seconds=late, poll_seconds=log),
        "stream": StreamConfig(poll_seconds=0.5, checkpoint_seconds=checkpoint),
        "trainer": TrainerConfig(poll_seconds=trainer, export_every_windows=windows, export_every_seconds=every),
        "serving": ServingConfig(poll_seconds=server),
    }
    found = DEFAULTS.model_copy(update=sections)
    *parts, work = waits(found, engine=engine)
    read = checkpoint + 0.5 if engine else log
    bundles = every or window * (windows - 1)
    assert sum(one.seconds for one in parts) == pytest.approx(window + late + read + trainer + bundles + server)
    assert longest(found, engine=engine) == pytest.approx(sum(one.seconds for one in (*parts, work)))
    line = event_to_answer(found, engine=engine)
    assert line.startswith("event -> answer: about ")
    assert line.count(" + ") == len(parts)


@pytest.mark.parametrize("engine", [False, True])
def test_the_readme_promises_what_the_defaults_keep_for_a_live_topic(tmp_path: Path, *, engine: bool) -> None:
    promised = re.search(r"within (\d+) seconds of\s+the event", README.read_text())
    assert promised is not None
    pipeline = with_window(Store(str(tmp_path)), PipelineConfig(log=TOPIC), follow=True)
    assert longest(DEFAULTS.model_copy(update={"pipeline": pipeline}), engine=engine) <= int(promised.group(1))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_stronger_source_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "weir.yaml", "trainer: {batch_size: 4, seed: 4, nprobe: 4}\nserving: {port: 4}\n")
    monkeypatch.setenv("WEIR_TRAINER__BATCH_SIZE", "6")
    monkeypatch.setenv("WEIR_TRAINER__SEED", "6")
    remembered = {"trainer": {"batch_size": 2, "nprobe": 2, "bundles_kept": 2}}
    overrides, _ = assignments(["trainer.batch_size=8"])
    trainer = load_settings(file, overrides, remembered).trainer
    assert (trainer.batch_size, trainer.seed, trainer.nprobe, trainer.bundles_kept) == (8, 6, 4, 2)
    # What no source names keeps its default, in the same section too.
    assert trainer.evaluation_k == Settings().trainer.evaluation_k


def test_nested_settings_can_be_set_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_TRAINER__TOWER__DIMENSION", "16")
    overrides, _ = assignments(["trainer.tower.layers=3", "pipeline.event_types={play: positive}", "monitor.k=[5]"])
    settings = load_settings(None, overrides)
    assert (settings.trainer.tower.dimension, settings.trainer.tower.layers) == (16, 3)
    assert settings.pipeline.event_types == {"play": "positive"}
    assert settings.monitor.k == (5,)


def test_all_problems_are_told_at_once_with_key_value_and_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "weir.yaml", "pipeline: {window_seconds: 0}\nservin: {}\n")
    monkeypatch.setenv("WEIR_TRANER__SEED", "1")
    overrides, problems = assignments(["trainer.batch_sise=3", "serving.device=tpu", "nonsense"])
    with pytest.raises(SettingsError) as caught:
        load_settings(file, overrides, None, problems)
    text = str(caught.value)
    assert len(caught.value.problems) == 6
    for part in (
        "--set nonsense: must be section.key=value",
        "environment variable WEIR_TRANER__SEED: there is no section traner; allowed: catalogue, client, histories,",
        "pipeline.window_seconds = 0: input should be greater than or equal to 1",
        "servin: there is no such setting; did you mean serving? allowed: catalogue, client, histories,",
        "trainer.batch_sise: there is no such setting; did you mean batch_size? allowed: admit_after,",
        "serving.device = 'tpu': input should be 'auto', 'cpu' or 'gpu'",
    ):
        assert part in text


def test_a_problem_deep_inside_names_its_own_level() -> None:
    with pytest.raises(SettingsError, match=r"tower\.layer: .*did you mean layers\? allowed: dimension, dropout"):
        load_settings(None, {"trainer": {"tower": {"layer": 3}}})


def test_a_rule_across_settings_is_told_in_its_own_words() -> None:
    with pytest.raises(SettingsError, match=r"trainer\.tower: heads = 3 does not divide dimension = 64"):
        load_settings(None, {"trainer": {"tower": {"heads": 3}}})


@pytest.mark.parametrize(("text", "problem"), [("a: [", "is not YAML"), ("- 1", "holds a list; must be a mapping")])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load_settings(written(tmp_path / "weir.yaml", text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"weir\.yaml: there is no such configuration file"):
        load_settings(tmp_path / "weir.yaml")


def test_the_yaml_shown_reads_back_to_the_same_settings(tmp_path: Path) -> None:
    settings = load_settings(None, {"trainer": {"batch_size": 77}, "pipeline": {"event_types": {"a b": "negative"}}})
    text = commented(settings)
    assert load_settings(written(tmp_path / "weir.yaml", text)).model_dump() == settings.model_dump()
    assert yaml.safe_load(text)["trainer"]["batch_size"] == 77
    assert "examples per step over all ranks together" in text


def test_every_setting_is_described() -> None:
    lines = [line for line in commented(load_settings()).splitlines() if not line.endswith(":")]
    assert len(lines) > 60
    assert [line for line in lines if "  # " not in line] == []


def test_assignments_that_contradict_each_other_are_refused() -> None:
    values, problems = assignments(["trainer=5", "trainer.seed=1"])
    assert values == {"trainer": 5}
    assert problems == ["--set trainer.seed=1: contradicts another --set, which gave all of trainer a value"]


def test_a_variable_that_should_be_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_TRAINER__EVALUATION_K", "10,20")
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    [problem] = refusal.value.problems
    assert problem.startswith("environment variable WEIR_TRAINER__EVALUATION_K = '10,20': must be JSON")


def test_a_section_that_is_a_value_is_told_what_it_must_be(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings(written(tmp_path / "weir.yaml", "trainer: 5\n"))
    assert refusal.value.problems[0].startswith("trainer = 5: must be a mapping")


def test_training_takes_no_more_exposed_items_than_windows_hold() -> None:
    values = {"trainer": {"negatives": {"exposed": 4}}, "pipeline": {"exposed_items": 3}}
    with pytest.raises(SettingsError) as caught:
        load_settings(None, values)
    problem = "trainer.negatives.exposed is 4, but windows hold 3 exposed items of each example"
    assert str(caught.value) == f"settings: {problem}: set pipeline.exposed_items to 4 or more"
    assert load_settings(None, values | {"pipeline": {"exposed_items": 4}}).trainer.negatives.exposed == 4


CHECKED_IN = Path(__file__).parents[2] / "docs/weir.schema.json"


def keys(model: Any) -> dict[str, Any]:
    """Return every setting by its path."""
    found = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if hasattr(value, "model_fields_set"):
            found |= {f"{name}.{inner}": shown for inner, shown in keys(value).items()}
        else:
            found[name] = field.description
    return found


def described(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return every setting of a schema by its path."""
    found = {}
    for name, inner in node["properties"].items():
        if reference := inner.get("$ref"):
            below = described(schema, schema["$defs"][reference.rsplit("/", 1)[1]])
            found |= {f"{name}.{key}": text for key, text in below.items()}
        else:
            found[name] = inner.get("description")
    return found


def test_the_schema_names_and_describes_every_setting() -> None:
    schema = json.loads(schema_text())
    assert described(schema, schema) == keys(Settings())


def test_the_checked_in_schema_is_that_of_the_settings() -> None:
    assert CHECKED_IN.read_text() == schema_text(), "write it again: weir config schema > docs/weir.schema.json"
