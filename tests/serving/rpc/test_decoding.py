from typing import Any

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.rpc.decoding import has_more_fields

IDS = st.lists(st.text(max_size=200), max_size=8)
QUERIES = st.one_of(
    st.builds(lambda user, k: pb.Query(user_id=user, k=k), st.text(max_size=5), st.integers(0, 2**32 - 1)),
    st.builds(lambda ids: pb.Query(history=pb.History(item_ids=ids)), IDS),
    st.builds(lambda values: pb.Query(embedding=pb.Embedding(values=values)), st.lists(st.floats(width=32))),
)
REQUESTS = st.builds(
    lambda queries, excluded, allowed, threshold: pb.RetrieveRequest(
        queries=queries,
        excluded_item_ids=excluded,
        filter=pb.Filter(allowed_item_ids=allowed),
        params=pb.SearchParams(score_threshold=threshold),
        exclude_seen=True,
    ),
    st.lists(QUERIES, max_size=5),
    IDS,
    IDS,
    st.floats(width=32),
)


def fields(message: Message) -> int:
    """Count by the decoded message."""
    count = 0
    for field, value in message.ListFields():
        values: Any = value if field.is_repeated else [value]
        packed = field.is_repeated and field.is_packed
        count += 1 if packed else len(values)
        count += sum(fields(each) for each in values) if field.message_type else 0
    return count


@given(REQUESTS)
def test_it_counts_what_decoding_would_make(request: pb.RetrieveRequest) -> None:
    count = fields(request)
    data = request.SerializeToString()
    assert not has_more_fields(data, request.DESCRIPTOR, count)
    assert count == 0 or has_more_fields(data, request.DESCRIPTOR, count - 1)


@given(st.binary(max_size=300), st.integers(0, 50))
def test_any_bytes_get_an_answer(data: bytes, most: int) -> None:
    has_more_fields(data, pb.RetrieveRequest.DESCRIPTOR, most)


def test_it_stops_as_soon_as_there_are_too_many() -> None:
    # Eight million empty queries would take seconds to count and a second to decode.
    assert has_more_fields(b"\x0a\x00" * (8 << 20), pb.RetrieveRequest.DESCRIPTOR, 1000)
