"""The settings as a JSON Schema, for editors and for checks without weir."""

import json
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema

from weir.config import Settings

__all__ = ["schema_text"]

_HEAD: Final = {"$schema": GenerateJsonSchema.schema_dialect, "title": "weir.yaml"}


def schema_text() -> str:
    """Return the schema of ``weir.yaml`` as JSON; its descriptions and defaults are those of `weir config show`."""
    return json.dumps(_HEAD | _terse(Settings.model_json_schema()), indent=2) + "\n"


def _terse(node: Any) -> Any:
    """Leave out titles, which only repeat names, and defaults of sections, which their keys have."""
    if isinstance(node, list):
        return [_terse(item) for item in node]
    if not isinstance(node, dict):
        return node
    noise = {"default"} if "$ref" in node else set()
    if isinstance(node.get("title"), str):
        noise |= {"title"}
    return {key: _terse(value) for key, value in node.items() if key not in noise}
