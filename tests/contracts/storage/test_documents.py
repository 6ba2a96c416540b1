import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import CorruptArtefactError, Document, Store
from weir.contracts.storage.documents import (
    decode_document,
    encode_document,
    read_document,
    seal,
    unseal,
    write_document,
)


class Note(Document):
    text: str
    number: int | None = None


class LaterNote(Note):
    colour: str


@given(st.text(max_size=40), st.one_of(st.none(), st.integers(-(2**60), 2**60)))
def test_what_is_written_is_read(text: str, number: int | None) -> None:
    note = Note(text=text, number=number)
    assert decode_document("a/path", encode_document(note), Note) == note


@given(st.text(max_size=20), st.data())
def test_every_altered_or_missing_byte_is_noticed(text: str, data: st.DataObject) -> None:
    encoded = bytearray(encode_document(Note(text=text)))
    place = data.draw(st.integers(0, len(encoded) - 1))
    if data.draw(st.booleans()):
        encoded[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del encoded[place:]
    with pytest.raises(CorruptArtefactError, match=r"^a/path: "):
        decode_document("a/path", bytes(encoded), Note)


def test_a_later_version_is_read_and_another_document_is_not() -> None:
    later = encode_document(LaterNote(text="new", colour="red"))
    assert decode_document("a/path", later, Note) == Note(text="new")
    with pytest.raises(CorruptArtefactError, match="a/path: is not a valid LaterNote: colour: Field required"):
        decode_document("a/path", encode_document(Note(text="old")), LaterNote)


def test_documents_are_files_of_the_store() -> None:
    store = Store("memory://documents")
    entry = write_document(store, "notes/one", Note(text="hello"))
    assert (entry.name, entry.size) == ("one", len(store.read("notes/one")))
    assert read_document(store, "notes/one", Note) == Note(text="hello")
    with pytest.raises(FileNotFoundError):
        read_document(store, "notes/two", Note)


def test_a_document_in_the_place_of_another_is_refused_and_says_whose_place_it_left() -> None:
    store = Store("memory://places")
    write_document(store, "notes/one", Note(text="hello"))
    store.write("notes/two", store.read("notes/one"))
    with pytest.raises(CorruptArtefactError, match="notes/two: is notes/one: it was put in the place of another file"):
        read_document(store, "notes/two", Note)


def test_what_is_sealed_is_refused_when_altered_and_in_the_place_of_another() -> None:
    sealed = seal("state/histories/shard-0", b"some data")
    assert unseal("store/state/histories/shard-0", sealed) == b"some data"
    for path, data in (("state/histories/shard-1", sealed), ("state/histories/shard-0", sealed[:-1])):
        with pytest.raises(CorruptArtefactError, match=path):
            unseal(path, data)
