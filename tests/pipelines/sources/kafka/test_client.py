import subprocess
import sys

from tests.pipelines.sources.kafka import collected_clients


def test_the_collector_may_find_a_client_in_a_thread_of_librdkafka() -> None:
    command = [sys.executable, "-m", collected_clients.__name__]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
