from hashlib import blake2b

import numpy as np
import pyarrow as pa
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import PADDING_KEY, hash_id, hash_ids, hash_strings


@given(st.lists(st.text()))
def test_an_array_hashes_as_its_ids_do(ids: list[str]) -> None:
    keys = hash_ids(pa.array(ids, pa.string()))
    assert keys.dtype == np.int64
    assert keys.tolist() == [hash_id(raw) for raw in ids]


@given(st.lists(st.text()), st.sampled_from(["", "0a" * 16]))
def test_a_few_strings_hash_as_each_of_them_does(ids: list[str], secret: str) -> None:
    keys = hash_strings(ids, secret)
    assert keys.dtype == np.int64
    assert keys.tolist() == [hash_id(raw, secret) for raw in ids]


@given(st.text())
def test_a_key_is_xxh3_64_of_the_utf8_id(raw: str) -> None:
    expected = np.frombuffer(xxhash.xxh3_64(raw.encode()).digest()[::-1], "<i8")[0]
    assert hash_id(raw) == expected != PADDING_KEY


def test_keys_are_the_same_on_every_platform() -> None:
    assert hash_id("") == 3244421341483603138
    assert hash_id("jazz-blue-042") == -7178648126831544657


def test_nulls_become_padding_and_chunks_do_not_matter() -> None:
    chunked = pa.chunked_array([["a", None], ["a", "b"]])
    assert hash_ids(chunked).tolist() == [hash_id("a"), PADDING_KEY, hash_id("a"), hash_id("b")]


def test_a_secret_makes_other_keys_and_the_same_ones_again() -> None:
    ids = [f"id-{number}" for number in range(500)]
    one, two = "0a" * 16, "0b" * 16
    keys = {secret: hash_ids(pa.array(ids), secret).tolist() for secret in ("", one, two)}
    assert keys[one] == [hash_id(raw, one) for raw in ids]
    assert len({key for found in keys.values() for key in found}) == 1500
    # RFC 7693: the keyed BLAKE2b of 8 bytes, little-endian.
    expected = int.from_bytes(blake2b(b"id-0", digest_size=8, key=bytes.fromhex(one)).digest(), "little", signed=True)
    assert keys[one][0] == expected
