"""Parse the values of settings: the model of the settings, not YAML, decides the type.

Text settings are taken verbatim: ``No``, ``007``, ``user #1`` and ``::`` stay text, although YAML alone would read
false, 7, ``user`` and a mapping. Where None is allowed, ``null``, ``~`` and the empty text mean None. All other values
(numbers, booleans, times, lists, mappings, sections) are YAML, and texts within them are taken verbatim.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

__all__ = ["annotation_at", "is_composite", "read_document", "read_value"]

_TEXT: Final = "tag:yaml.org,2002:str"
_NULL: Final = "tag:yaml.org,2002:null"
_MERGE: Final = "tag:yaml.org,2002:merge"
_SCALARS: Final = {
    "tag:yaml.org,2002:bool": (bool,),
    "tag:yaml.org,2002:int": (int, float),
    "tag:yaml.org,2002:float": (float,),
    "tag:yaml.org,2002:timestamp": (datetime,),
}
"""YAML's type of a scalar -> the types of settings that accept such a scalar."""
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_NONE: Final = ("null", "Null", "NULL", "~", "")


def annotation_at(model: type[BaseModel], keys: Sequence[str]) -> Any:
    """Return the type of the setting at a path of keys; `Any` if the model has no such setting."""
    found: Any = model
    for key in keys:
        found = _inside(found, key)
    return found


def is_composite(annotation: Any) -> bool:
    """Return whether every value of a type is composite: a list, a mapping or a section."""
    return all(_is_model(one) or get_origin(one) in {dict, tuple} for one in _members(annotation))


def read_value(text: str, annotation: Any) -> Any:
    """Return the value that a text spells for a setting of type `annotation`; unreadable YAML stays a text."""
    members = _members(annotation)
    values = [one for one in members if one is not NoneType]
    if all(map(_is_text, values)):
        return None if NoneType in members and text in _NONE else text
    try:
        return read_document(text, annotation)
    # YAML has dates, but 2026-13-45 is not one.
    except (yaml.YAMLError, ValueError):
        return text


def read_document(content: str | bytes, annotation: Any) -> Any:
    """Parse a YAML document whose value has the type `annotation`; raises `yaml.YAMLError` or `ValueError`."""
    loader = yaml.SafeLoader(content)
    try:
        node = loader.get_single_node()
        return None if node is None else loader.construct_document(_as_written(node, annotation))
    finally:
        loader.dispose()


def _as_written(node: yaml.Node, annotation: Any) -> yaml.Node:
    """Return the YAML node with the scalars of text settings turned into verbatim texts."""
    if isinstance(node, yaml.ScalarNode):
        return _text(node) if _is_written(node, _members(annotation)) else node
    if isinstance(node, yaml.SequenceNode) and any(get_origin(one) is tuple for one in _members(annotation)):
        items = [_as_written(item, _inside(annotation, number)) for number, item in enumerate(node.value)]
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark)
    if isinstance(node, yaml.MappingNode) and any(
        _is_model(one) or get_origin(one) is dict for one in _members(annotation)
    ):
        pairs = [_pair(key, value, annotation) for key, value in node.value]
        return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)
    return node


def _pair(key: yaml.Node, value: yaml.Node, annotation: Any) -> tuple[yaml.Node, yaml.Node]:
    """Return a mapping's entry with the key as text; the key ``<<``, which merges mappings, stays as it is."""
    if not isinstance(key, yaml.ScalarNode):
        return key, value
    if key.tag != _MERGE:
        return _text(key), _as_written(value, _inside(annotation, key.value))
    several = isinstance(value, yaml.SequenceNode)
    return key, _as_written(value, tuple[annotation, ...] if several else annotation)


def _is_written(node: yaml.ScalarNode, members: Sequence[Any]) -> bool:
    """Return whether a scalar stays a verbatim text under a type with these union members."""
    if not any(map(_is_text, members)) or (node.tag == _NULL and NoneType in members):
        return False
    # If a type allows texts and numbers, 7 is a number and 007 a text.
    taken = any(kind in members for kind in _SCALARS.get(node.tag, ()))
    return not taken or (node.tag in _NUMBERS and str(yaml.safe_load(node.value)) != node.value)


def _text(node: yaml.ScalarNode) -> yaml.ScalarNode:
    return yaml.ScalarNode(_TEXT, node.value, node.start_mark, node.end_mark)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union type; for any other type, the type alone."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return tuple(member for one in get_args(annotation) for member in _members(one))
    return (annotation,)


def _inside(annotation: Any, key: str | int) -> Any:
    """Return the type of the value under a key of a section, mapping or list."""
    found = []
    for one in _members(annotation):
        kinds = get_args(one)
        if _is_model(one) and key in one.model_fields:
            found.append(one.model_fields[key].annotation)
        elif get_origin(one) is dict:
            found.append(kinds[1])
        elif get_origin(one) is tuple and isinstance(key, int):
            found.append(kinds[0] if kinds[1:] == (...,) else kinds[key] if key < len(kinds) else Any)
    return Union[tuple(found)] if found else Any  # noqa: UP007 - of a list known only at run time


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return all(isinstance(value, str) for value in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, str | PurePath)
