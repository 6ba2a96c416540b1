"""The effective settings: the models of all stages in one, and the sources of their values.

In order of precedence: the command line (``--set trainer.batch_size=256``), the environment
(``WEIR_TRAINER__BATCH_SIZE=256``), the file of ``--config``, what the store has recorded
(`weir.pipelines.store_settings`) and what it remembers from the last ``weir up``, the defaults. `weir.spelling` reads
the values of the first three.
"""

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from weir.contracts import UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.stream.config import StreamConfig
from weir.serving.access_config import ClientConfig
from weir.serving.config import ServingConfig
from weir.serving.histories.redis_config import FollowerConfig
from weir.serving.monitor.config import MonitorConfig
from weir.spelling import annotation_at, is_composite, read_document, read_value
from weir.trainer.settings.trainer import TrainerConfig

__all__ = [
    "Given",
    "Settings",
    "SettingsError",
    "assignments",
    "effective",
    "load_settings",
    "located",
    "put",
    "schema_text",
]


_PREFIX: Final = "WEIR_"
_DELIMITER: Final = "__"


class SettingsError(UserError):
    """Invalid settings, one line for each."""

    exit_status = 2

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def explain(self) -> list[str]:
        """Return a headline and a line for each problem."""
        return ["these settings cannot be used:", *(f"  {problem}" for problem in self.problems)]


class Settings(BaseSettings):
    """All settings of weir."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter=_DELIMITER,
        extra="forbid",
        frozen=True,
    )

    store: str = Field(
        default="weir-data", min_length=1, description="folder of windows and bundles; a path or fsspec URL"
    )
    catalogue: str | None = Field(
        default=None,
        min_length=1,
        description="what is known of items beside the log: a path or fsspec URL of a Parquet, JSON Lines or CSV file "
        "with item_id, tags, available_from and available_until; read again when it changes; null: nothing",
    )
    takedown: str | None = Field(
        default=None,
        min_length=1,
        description="text file (path or fsspec URL) of ids, a line each, of items that are not returned; a change "
        "works within a second; null: none",
    )
    pipeline: PipelineConfig = Field(default=PipelineConfig(), description="from the log to windows")
    stream: StreamConfig = Field(default=StreamConfig(), description="the pipeline under an engine, from a topic")
    trainer: TrainerConfig = Field(default=TrainerConfig(), description="from windows to bundles")
    serving: ServingConfig = Field(default=ServingConfig(), description="from bundles to answers")
    histories: FollowerConfig = Field(default=FollowerConfig(), description="from the store to Redis")
    monitor: MonitorConfig = Field(default=MonitorConfig(), description="recall through the server")
    client: ClientConfig = Field(default=ClientConfig(), description="how all of them reach the server")

    @model_validator(mode="after")
    def _windows_hold_what_training_takes(self) -> Self:
        wanted, kept = self.trainer.negatives.exposed, self.pipeline.exposed_items
        if wanted > kept:
            raise ValueError(
                f"trainer.negatives.exposed is {wanted}, but windows hold {kept} exposed items of each example: set "
                f"pipeline.exposed_items to {wanted} or more"
            )
        return self


@dataclass(frozen=True)
class Given:
    """The settings as given: nested values by source, the strongest source first.

    `problems` has a line for each value that could not be read.
    """

    sources: tuple[tuple[str, Mapping[str, Any]], ...]
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: Path | None, overrides: Mapping[str, Any] | None, problems: Iterable[str] = ()) -> "Given":
        """Collect the values of command line, environment and file; raises `SettingsError` for an unreadable file."""
        environment, unusable = _variables(os.environ)
        sources = (("command line", overrides or {}), ("environment", environment), (str(file), _file(file)))
        return cls(sources, (*problems, *unusable))

    def source(self, setting: str) -> str | None:
        """Return the name of the strongest source that sets ``section.key`` or a part of it; None without one."""
        return next((name for name, values in self.sources if _has(values, setting.split("."))), None)

    @property
    def store(self) -> Any:
        """The given value of the setting ``store``, not validated yet, or its default."""
        default = Settings.model_fields["store"].default
        return next((values["store"] for _, values in self.sources if "store" in values), default)


def load_settings(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    remembered: Mapping[str, Any] | None = None,
    problems: Iterable[str] = (),
) -> Settings:
    """Return the effective settings.

    Parameters
    ----------
    file
        File of settings in YAML (or JSON); None: no file.
    overrides
        Nested values of the command line, which take precedence.
    remembered
        Nested values that replace the defaults.
    problems
        Lines about arguments that could not be parsed; the error reports them, too.

    Raises
    ------
    SettingsError
        With a line for every unknown key and every invalid value.
    """
    return effective(Given.of(file, overrides, problems), remembered)


def effective(given: Given, remembered: Mapping[str, Any] | None = None) -> Settings:
    """Return the validated settings: the `given` values over `remembered` ones, which replace the defaults.

    Raises as `load_settings`.
    """
    strongest, *weaker = (values for _, values in given.sources)

    class Sourced(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - `_variables` understands mappings better
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not used: one file is enough
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no setting is a secret
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            others = (*weaker, remembered or {})
            return init_settings, *(InitSettingsSource(settings_cls, dict(values)) for values in others)

    problems = [*given.problems]
    try:
        settings = Sourced(**strongest)
    except ValidationError as error:
        raise SettingsError(problems + [_line(detail) for detail in error.errors(include_url=False)]) from None
    if problems:
        raise SettingsError(problems)
    return settings


def located(settings: Settings) -> dict[str, Any]:
    """Return the settings `catalogue` and `takedown`, if given, as absolute paths or URLs."""
    named = {"catalogue": settings.catalogue, "takedown": settings.takedown}
    return {name: path if not path or "://" in path else str(Path(path).resolve()) for name, path in named.items()}


def assignments(pairs: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Parse ``a.b=value`` pairs (`weir.spelling`) into nested values; also return a line for each malformed pair."""
    values: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        path, sign, text = pair.partition("=")
        keys = path.strip().split(".")
        if not sign or not all(keys):
            problems.append(f"--set {pair}: must be section.key=value, such as trainer.batch_size=256")
        elif not put(values, keys, read_value(text, annotation_at(Settings, keys))):
            problems.append(f"--set {pair}: contradicts another --set, which gave all of {keys[0]} a value")
    return values, problems


def put(values: dict[str, Any], keys: list[str], value: object) -> bool:
    """Set a value at a path of keys in nested `values`, merging mappings.

    Return False if the path leads through a value that is not a mapping.
    """
    at: Any = values
    for key in keys[:-1]:
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            return False
    if isinstance(value, dict) and isinstance(before := at.get(keys[-1]), dict):
        for key, each in value.items():
            put(before, [key], each)
    else:
        at[keys[-1]] = value
    return True


def _has(values: Any, keys: list[str]) -> bool:
    """Return whether nested values contain a path of keys."""
    for key in keys:
        if not isinstance(values, Mapping) or key not in values:
            return False
        values = values[key]
    return True


def _file(file: Path | None) -> dict[str, Any]:
    """Return the nested values in a file of settings; empty if `file` is None."""
    if file is None:
        return {}
    try:
        content = read_document(file.expanduser().read_bytes(), Settings)
    except FileNotFoundError:
        raise SettingsError([f"{file}: there is no such configuration file"]) from None
    except OSError as error:
        raise SettingsError([f"{file}: cannot be read: {error.strerror}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise SettingsError([f"{file}: is not YAML, where a text such as '::' needs quotes: {problem}"]) from None
    if content is not None and not isinstance(content, dict):
        raise SettingsError([f"{file}: holds a {type(content).__name__}; must be a mapping of sections to settings"])
    return content or {}


def _variables(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the nested values of the ``WEIR_`` variables, and a line for each variable that cannot have an effect."""
    values: dict[str, Any] = {}
    problems = []
    # Sorted: a whole section comes before its single settings, which win.
    for name, text in sorted(environment.items()):
        keys = name.lower().removeprefix(_PREFIX.lower()).split(_DELIMITER)
        if not name.upper().startswith(_PREFIX) or (len(keys) == 1 and keys[0] not in Settings.model_fields):
            continue
        if keys[0] not in Settings.model_fields:
            allowed = ", ".join(sorted(Settings.model_fields))
            problems.append(f"environment variable {name}: there is no section {keys[0]}; allowed: {allowed}")
            continue
        kind = annotation_at(Settings, keys)
        value = read_value(text, kind)
        if is_composite(kind) and not isinstance(value, list | dict):
            problems.append(
                f"environment variable {name} = {text!r}: must be JSON, as all lists, mappings and whole sections"
            )
        # Pydantic reads numbers and times from the text: 010 is ten for it, but eight in YAML.
        elif not put(values, keys, text if kind is not Any and isinstance(value, int | float | date) else value):
            problems.append(f"environment variable {name}: contradicts another, which gave all of {keys[0]} a value")
    return values, problems


def _line(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    key = ".".join(path) or "settings"
    if detail["type"] == "extra_forbidden":
        allowed = sorted(_model_at(path[:-1]).model_fields)
        close = difflib.get_close_matches(path[-1], allowed, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        return f"{key}: there is no such setting; {hint}allowed: {', '.join(allowed)}"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in {"model_type", "dict_type"}:
        message = "Must be a mapping of names to values; leave it out to keep what it has"
    if isinstance(detail["input"], BaseModel | dict):
        return f"{key}: {message}"
    return f"{key} = {detail['input']!r}: {message[0].lower()}{message[1:]}"


def _model_at(path: list[str]) -> type[BaseModel]:
    """Return the settings model at a path of keys."""
    model: type[BaseModel] = Settings
    for key in path:
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


_HEAD: Final = {"$schema": GenerateJsonSchema.schema_dialect, "title": "weir.yaml"}


def schema_text() -> str:
    """Return the schema of ``weir.yaml`` as JSON, with the descriptions and defaults of `weir config show`."""
    return json.dumps(_HEAD | _terse(Settings.model_json_schema()), indent=2) + "\n"


def _terse(node: Any) -> Any:
    """Return a JSON schema without titles (they repeat names) and defaults of sections (each key has its own)."""
    if isinstance(node, list):
        return [_terse(item) for item in node]
    if not isinstance(node, dict):
        return node
    noise = {"default"} if "$ref" in node else set()
    if isinstance(node.get("title"), str):
        noise |= {"title"}
    return {key: _terse(value) for key, value in node.items() if key not in noise}
