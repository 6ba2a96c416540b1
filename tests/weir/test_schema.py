import json
from pathlib import Path
from typing import Any

from weir.config import Settings
from weir.schema import schema_text

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
