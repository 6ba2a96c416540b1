"""A text of the settings is the text that was given, from each source; everything else is read as YAML."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from weir.config import Settings, SettingsError, assignments, load_settings
from weir.spelling import annotation_at, read_value
from weir.text import as_yaml

WORDS: Final = ("No", "on", "off", "null", "~", "1", "007", "0x1F", "1e3", "1:30", ".inf", "2026-11-20", "2026-13-45")
SIGNS: Final = ("::", "user #1", "#user", "item: id", "[a", "{", "- a", "'", '"No"', "!!int 7", "&a", "*a", "=", " a ")
TEXTS: Final = st.sampled_from((*WORDS, *SIGNS)) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12
)
VARIED: Final = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def texts_in(model: type[BaseModel], *path: str) -> list[tuple[str, ...]]:
    """The paths of all settings whose type is `str`."""
    found: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if kind is str:
            found.append((*path, name))
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            found += texts_in(kind, *path, name)
    return found


def at(values: dict[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = values
    for key in path:
        found = found[key]
    return found


@VARIED
@given(path=st.sampled_from(texts_in(Settings)), text=TEXTS)
def test_set_takes_every_text_as_it_stands(path: tuple[str, ...], text: str) -> None:
    values, problems = assignments([f"{'.'.join(path)}={text}"])
    assert (at(values, path), problems) == (text, [])


def columns_of(**sources: Any) -> dict[str, str]:
    return load_settings(**sources).pipeline.columns.model_dump(include={"user_id", "item_id"})


@VARIED
@given(user=TEXTS, item=TEXTS)
def test_all_sources_read_the_same_text(user: str, item: str, tmp_path: Path) -> None:
    if len({user, item, "timestamp", "event_id", "event_type", "weight", "attribution_token"}) < 7:
        return
    wanted = {"user_id": user, "item_id": item}
    overrides, _ = assignments([f"pipeline.columns.{name}={text}" for name, text in wanted.items()])
    assert columns_of(overrides=overrides) == wanted
    inside, _ = assignments([f"pipeline.columns={as_yaml(wanted)}"])
    assert columns_of(overrides=inside) == wanted
    file = tmp_path / "weir.yaml"
    file.write_text(f"pipeline: {{columns: {as_yaml(wanted)}}}\n")
    assert columns_of(file=file) == wanted
    if "\0" not in user + item:
        with pytest.MonkeyPatch.context() as patch:
            for name, text in wanted.items():
                patch.setenv(f"WEIR_PIPELINE__COLUMNS__{name.upper()}", text)
            assert columns_of() == wanted


@pytest.mark.parametrize("text", WORDS)
def test_a_file_takes_an_unquoted_text_as_it_is_written(text: str, tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text(
        f"pipeline:\n  columns: {{user_id: {text}}}\n  log: {text}\n  event_types: {{{text}: positive}}\n"
        f"  item_features:\n    categorical:\n    - {text}x\n    - 11\n"
    )
    pipeline = load_settings(file).pipeline
    assert (pipeline.columns.user_id, pipeline.log) == (text, text)
    assert pipeline.event_types == {text: "positive"}
    assert pipeline.item_features.categorical == (f"{text}x", "11")


def test_anchors_and_merges_of_a_file_take_the_types_of_where_they_are_used(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text(
        "pipeline: {log: &seed 007, columns: &names {user_id: No}}\ntrainer: {seed: *seed, metrics_host: on}\n"
    )
    found = load_settings(file)
    assert (found.pipeline.log, found.trainer.seed, found.trainer.metrics_host) == ("007", 7, "on")
    file.write_text("pipeline:\n  columns:\n    <<: {user_id: No}\n    item_id: 1\n")
    assert columns_of(file=file) == {"user_id": "No", "item_id": "1"}


@pytest.mark.parametrize("null", ["null", "~", ""])
def test_null_is_none_where_a_setting_may_have_no_value(
    null: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_before = {"catalogue": "items.csv", "pipeline": {"retention_days": 30.0}}
    overrides, _ = assignments([f"catalogue={null}", f"pipeline.retention_days={null}"])
    found = load_settings(None, overrides, given_before)
    assert (found.catalogue, found.pipeline.retention_days) == (None, None)
    file = tmp_path / "weir.yaml"
    file.write_text(f"catalogue: {null}\npipeline: {{retention_days: {null}}}\n")
    found = load_settings(file, None, given_before)
    assert (found.catalogue, found.pipeline.retention_days) == (None, None)
    file.write_text("catalogue: 'null'\n")
    assert load_settings(file).catalogue == "null"
    monkeypatch.setenv("WEIR_CATALOGUE", null)
    monkeypatch.setenv("WEIR_PIPELINE__RETENTION_DAYS", null)
    found = load_settings(None, None, given_before)
    assert (found.catalogue, found.pipeline.retention_days) == (None, None)


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("trainer.batch_size=256", 256),
        ("trainer.optimizer.max_gradient_norm=0.5", 0.5),
        ("pipeline.secret_keys=yes", True),
        ("trainer.evaluation_k=[10, 20]", (10, 20)),
        ("trainer.half_life_seconds=[60, 3600]", (60.0, 3600.0)),
        ("trainer.half_life_seconds=60", 60.0),
        ("pipeline.max_time=2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("pipeline.kafka.start=2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("pipeline.kafka.start=latest", "latest"),
        ("pipeline.event_types={no: negative, 1: positive}", {"no": "negative", "1": "positive"}),
        ("pipeline.event_types.on=positive", {"on": "positive"}),
        ("pipeline.kafka.options={client.id: 007, crcs: true, max: 7}", {"client.id": "007", "crcs": True, "max": 7}),
        ("trainer.variants={1: {seed: 4}}", {"1": {"seed": 4}}),
        ("serving.cache_dir=007", Path("007")),
    ],
)
def test_everything_else_is_yaml(pair: str, value: object) -> None:
    values, problems = assignments([pair])
    found: Any = load_settings(None, values, None, problems)
    for key in pair.partition("=")[0].split("."):
        found = found if isinstance(found, dict) else getattr(found, key)
    assert found == value


def test_a_number_of_the_environment_is_decimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_TRAINER__SEED", "010")
    monkeypatch.setenv("WEIR_TRAINER__EVALUATION_K", "[10, 20]")
    monkeypatch.setenv("WEIR_SERVING", '{"host": "::", "port": 7}')
    monkeypatch.setenv("WEIR_SERVING__PORT", "8")
    found = load_settings()
    assert (found.trainer.seed, found.trainer.evaluation_k) == (10, (10, 20))
    assert (found.serving.host, found.serving.port) == ("::", 8)


def test_a_mapping_adds_to_another() -> None:
    values, problems = assignments(["pipeline.event_types.a=positive", "pipeline.event_types={b: negative, c: ignore}"])
    assert (values, problems) == (
        {"pipeline": {"event_types": {"a": "positive", "b": "negative", "c": "ignore"}}},
        [],
    )


def test_a_value_that_yaml_cannot_read_is_told_with_its_setting() -> None:
    values, problems = assignments(["trainer.seed=2026-13-45", "trainer.evaluation_k=[1"])
    with pytest.raises(SettingsError) as refused:
        load_settings(None, values, None, problems)
    assert [problem.partition(" = ")[0] for problem in refused.value.problems] == [
        "trainer.seed",
        "trainer.evaluation_k",
    ]


def test_what_the_model_does_not_know_is_yaml() -> None:
    assert annotation_at(Settings, ["trainer", "nonsense", "deeper"]) is Any
    assert read_value("[No, 7]", Any) == [False, 7]
