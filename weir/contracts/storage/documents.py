"""Documents: small JSON files of a store that carry the checksum of their own bytes.

A document starts with ``{"checksum": "<32 hexadecimal digits>",``: the ``xxh3_128`` of all bytes after that line. The
next line may say ``"file": "<name>",``; readers refuse such a document under another name. Readers ignore unknown
fields, so that they read documents of the next minor format.
"""

import json
import re
from typing import Final, TypeVar

from pydantic import ValidationError

from weir.contracts.base.errors import CorruptArtefactError, in_one_line
from weir.contracts.base.models import StoredModel
from weir.contracts.storage.store import FileEntry, Store, checksum

__all__ = [
    "Document",
    "decode_document",
    "encode_document",
    "encode_fields",
    "read_document",
    "seal",
    "unseal",
    "write_document",
]

_HEAD: Final = re.compile(rb'\{"checksum": "([0-9a-f]{32})",\n')
_FILE: Final = re.compile(rb' "file": ("[^\n]*"),\n')


class Document(StoredModel):
    """Base of all documents."""


DocumentT = TypeVar("DocumentT", bound=Document)


def encode_document(document: Document, name: str = "") -> bytes:
    """Return the bytes of a document; give the `name` of its file unless other fields identify it."""
    return encode_fields(document.model_dump_json(indent=1).encode(), name)


def encode_fields(text: bytes, name: str = "") -> bytes:
    """Return the bytes of a document, given a JSON object with one field per line."""
    body = text.removeprefix(b"{\n")
    if name:
        body = b' "file": %s,\n' % json.dumps(name).encode() + body
    return b'{"checksum": "%s",\n' % checksum(body).encode() + body


def decode_document(path: str, data: bytes, model: type[DocumentT]) -> DocumentT:
    """Return the document in `data`; raises `CorruptArtefactError`, which names `path`."""
    head = _HEAD.match(data)
    if head is None:
        raise CorruptArtefactError(path, "does not start with its checksum: it is damaged, or of another format")
    body = data[head.end() :]
    if (found := checksum(body).encode()) != head[1]:
        raise CorruptArtefactError(path, f"has checksum {found.decode()}, its first line says {head[1].decode()}")
    _check_place(path, _FILE.match(body))
    try:
        return model.model_validate_json(b"{" + body)
    except ValidationError as error:
        raise CorruptArtefactError(path, f"is not a valid {model.__name__}: {in_one_line(error)}") from error


def _check_place(path: str, file: re.Match[bytes] | None) -> None:
    name = json.loads(file[1]) if file else ""
    if name and path != name and not path.endswith(f"/{name}"):
        raise CorruptArtefactError(path, f"is {name}: it was put in the place of another file")


def write_document(store: Store, name: str, document: Document) -> FileEntry:
    """Write a document atomically, replacing an older one."""
    return store.write(name, encode_document(document, name))


def read_document(store: Store, name: str, model: type[DocumentT]) -> DocumentT:
    """Return a stored document; raises `CorruptArtefactError` or `FileNotFoundError`."""
    return decode_document(store.path(name), store.read(name), model)


def seal(name: str, data: bytes) -> bytes:
    """Return a line with the checksum of `data` and the last part of `name`, followed by the data.

    For files that no manifest lists; `unseal` checks them.
    """
    return f"{checksum(data)} {_last(name)}\n".encode() + data


def unseal(path: str, sealed: bytes) -> bytes:
    """Return the data of a sealed file; raises `CorruptArtefactError`, which names `path`."""
    line, _, data = sealed.partition(b"\n")
    expected = f"{checksum(data)} {_last(path)}"
    if line != expected.encode():
        raise CorruptArtefactError(
            path, f"begins with {line[:80]!r}, expected {expected!r}: it is damaged or misplaced"
        )
    return data


def _last(name: str) -> str:
    return name.rpartition("/")[2]
