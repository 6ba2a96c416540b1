"""Drop clients that wait for an answer, where only Python's collector finds them, in a thread of librdkafka.

    python -m tests.pipelines.sources.kafka.collected_clients

The collector is off until such a thread takes the answer that no broker is there.
"""

import gc
import time
from pathlib import Path

from tests.ports import free_port
from weir.pipelines.kafka_config import KafkaConfig, Topic
from weir.pipelines.sources.kafka.client import TopicClient

_ROUNDS = 8
_TIMEOUT_SECONDS = 0.1


def threads() -> int:
    """Return how many threads this process has, those of libraries as well."""
    return len([*Path("/proc/self/task").iterdir()])


def drop_one(topic: Topic) -> None:
    """Ask with a new client, and let only a cycle hold it."""
    client = TopicClient(topic, KafkaConfig(timeout_seconds=_TIMEOUT_SECONDS))
    client.ask_topic_id()
    cycle: list[object] = [client]
    cycle.append(cycle)


def main() -> None:
    """Drop one client after the other; those before the last one must be gone."""
    topic = Topic.parse(f"kafka://127.0.0.1:{free_port()}/clicks")
    gc.set_threshold(1)
    most = 0
    for number in range(_ROUNDS):
        gc.disable()
        drop_one(topic)
        gc.enable()
        time.sleep(3 * _TIMEOUT_SECONDS)
        most = most or threads()
        assert threads() <= most, f"{threads()} threads after {number + 1} clients, {most} after the first"


if __name__ == "__main__":
    main()
