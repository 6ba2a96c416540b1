import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka.address import Topic
from weir.readers import is_topic

HOSTS = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True)
SERVERS = st.tuples(HOSTS, st.integers(0, 65_535)).map(lambda server: f"{server[0]}:{server[1]}")
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})


@given(st.lists(SERVERS, min_size=1, max_size=4).map(tuple), NAMES)
def test_a_url_names_brokers_and_a_topic(servers: tuple[str, ...], name: str) -> None:
    topic = Topic(servers, name)
    assert is_topic(str(topic))
    assert Topic.parse(str(topic)) == topic


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://broker:9092", "'' is no name of a topic"),
        ("kafka://broker:9092/", "'' is no name of a topic"),
        ("kafka://broker:9092/a/b", "'a/b' is no name of a topic"),
        ("kafka://broker:9092/..", "'..' is no name of a topic"),
        ("kafka://broker:9092/" + "a" * 250, "at most 249"),
        ("kafka://broker/clicks", "'broker' is no broker"),
        ("kafka:///clicks", "'' is no broker"),
        ("kafka://a:1,,b:2/clicks", "'' is no broker"),
        ("kafka://a:65536/clicks", "'a:65536' is no broker"),
        ("kafka://me:secret@a:1/clicks", "pipeline.kafka.user"),
    ],
)
def test_another_form_is_refused_by_its_wrong_part(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as error:
        Topic.parse(url)
    assert "secret" not in str(error.value)
    with pytest.raises(ValidationError, match=problem):
        PipelineConfig(log=url)


def test_files_are_no_topics() -> None:
    assert not any(map(is_topic, ["log", "/kafka:/a", "s3://kafka/a.jsonl", "kafka.jsonl"]))
    assert is_topic("kafka://[::1]:9092/a")
    assert Topic.parse("kafka://[::1]:9092/a").servers == ("[::1]:9092",)
