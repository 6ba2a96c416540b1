"""Stores as another minor version of the format would leave them: with fields of later ones, without optional ones.

Which objects of a document are models, and which are mappings with keys of their own, is told by the model that reads
it. Commits are rewritten in order, so that their chain of checksums holds, up to the snapshot.
"""

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel

from weir.contracts import BundleManifest, Commit, Document, EventClock, Store, StoreFormat
from weir.contracts.bundles.checkpoint import CheckpointMark
from weir.contracts.commits.commit_log import Head
from weir.contracts.commits.log_state import _Snapshot
from weir.contracts.storage.documents import encode_fields
from weir.contracts.storage.format import FORMAT
from weir.contracts.storage.store import checksum
from weir.serving.monitor.results import WindowRecall
from weir.trainer.state.progress import Evaluation

KINDS: dict[str, type[BaseModel]] = {
    "STORE.json": StoreFormat,
    "CLOCK.json": EventClock,
    "commits/[0-9]*.json": Commit,
    "commits/HEAD": Head,
    "commits/snapshot-*.json": _Snapshot,
    "evaluations/*/*.json": Evaluation,
    "monitor/*/*.json": WindowRecall,
    "bundles/*/MANIFEST.json": BundleManifest,
    "checkpoints/*/CHECKPOINT.json": CheckpointMark,
}
"""Of other documents, such as marks, the outermost object is all that is rewritten."""

Change = Callable[[dict[str, Any], BaseModel], dict[str, Any]]


def of_the_next(fields: dict[str, Any], _model: BaseModel) -> dict[str, Any]:
    """What the next minor version may add: anything."""
    return {"of_the_next_format": {"some": ["thing", 1]}, **fields}


def of_an_older(fields: dict[str, Any], model: BaseModel) -> dict[str, Any]:
    """What an older minor version may not know: what is optional, where it has nothing to say."""
    known = type(model).model_fields
    return {name: value for name, value in fields.items() if name not in known or not _is_default(model, name)}


def _is_default(model: BaseModel, name: str) -> bool:
    field = type(model).model_fields[name]
    return not field.is_required() and getattr(model, name) == field.get_default(call_default_factory=True)


def rewrite(store: Store, change: Change, minor: int) -> dict[str, int]:
    """Rewrite all documents of a store; return how many of each kind."""
    counts: dict[str, int] = {}
    digests, folders = [""], dict[str, str]()
    # Commits come first: checkpoints, bundles and places name them by checksum.
    for name in sorted(store.find(), key=lambda one: (not one.startswith("commits/"), one)):
        data = store.read(name)
        if not data.startswith(b'{"checksum"'):
            continue
        kind = next((kind for kind in KINDS if fnmatchcase(name, kind)), name)
        counts[kind] = counts.get(kind, 0) + 1
        fields = {key: value for key, value in json.loads(data).items() if key != "checksum"}
        fields = changed(fields, KINDS.get(kind, Document).model_validate(fields), change)
        if kind == "STORE.json":
            fields["format"] = [FORMAT[0], minor]
        if KINDS.get(kind) is Commit:
            fields["predecessor"] = digests[-1]
        if parent := fields.get("parent"):
            parent["checksum"] = folders[f"{name.split('/')[0]}/{parent.get('name') or parent['version']}"]
        for ref in filter(None, (fields.get("trained_commit"), fields.get("commit"))):
            ref["checksum"] = digests[ref["number"] + 1]
        if KINDS.get(kind) is _Snapshot:
            number, sequence, _ = fields["state"]["cursor"]
            fields["state"]["cursor"] = [number, sequence, digests[number]]
        found = encode_fields(json.dumps(fields, indent=1).encode())
        store.write(name, found)
        if KINDS.get(kind) is Commit:
            digests.append(checksum(found))
        if KINDS.get(kind) in {CheckpointMark, BundleManifest}:
            folders[name.rpartition("/")[0]] = checksum(found)
    return counts


def changed(stored: Any, read: Any, change: Change) -> Any:
    """Change every object of a JSON value that was read as a model."""
    if isinstance(read, BaseModel):
        inner = {key: changed(value, getattr(read, key, None), change) for key, value in stored.items()}
        return change(inner, read)
    if isinstance(read, dict):
        return {
            key: changed(value, one, change) for (key, value), one in zip(stored.items(), read.values(), strict=True)
        }
    if isinstance(read, list | tuple) and isinstance(stored, list):
        return [changed(value, one, change) for value, one in zip(stored, read, strict=True)]
    return stored
