"""A following ingest as a process: its metrics can be scraped, and SIGTERM ends it cleanly."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import Store

FOLLOW = """
import logging, sys
from pathlib import Path
from weir.contracts import Store
from weir.pipelines.batch.ingest import ingest
from tests.pipelines import support
logging.basicConfig(level=logging.INFO, force=True)
folder = Path(sys.argv[1])
print(ingest(Store(str(folder / "store")), support.config(folder, idle_seconds=0.1), follow=True).valid)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_following_after_the_run(tmp_path: Path, number: signal.Signals) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", [Event("u", "i", second).line() for second in range(30)])
    command = [sys.executable, "-c", FOLLOW, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        until, port = time.monotonic() + 60, None
        while port is None:
            assert time.monotonic() < until
            port = re.search(r"metrics on port (\d+)", process.stderr.readline())
        metrics = ""
        while 'weir_pipeline_events_total{label="positive"} 30.0' not in metrics:
            assert time.monotonic() < until, metrics
            time.sleep(0.1)
            metrics = urllib.request.urlopen(f"http://localhost:{port[1]}/metrics").read().decode()
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert output == "30\n"
    assert "Traceback" not in errors
    assert sum(manifest.counts.events for manifest in support.committed(Store(str(tmp_path / "store")))) == 30
