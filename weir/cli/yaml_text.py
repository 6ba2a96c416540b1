"""Settings as YAML, each with its description."""

from pydantic import BaseModel

from weir.text import as_yaml

__all__ = ["commented"]


def commented(model: BaseModel, indent: int = 0) -> str:
    """Return the model as YAML; each line carries the field's description as a comment."""
    pad = " " * indent
    text = ""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            text += f"{pad}{name}:\n{commented(value, indent + 2)}"
            continue
        plain = as_yaml(model.model_dump(mode="json", include={name})[name])
        text += f"{pad}{name}: {plain}" + (f"  # {field.description}" if field.description else "") + "\n"
    return text
