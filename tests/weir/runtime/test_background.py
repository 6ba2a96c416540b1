import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from weir.runtime.background import in_daemon


def test_a_call_runs_in_a_daemon_and_is_waited_for() -> None:
    seen = []
    asyncio.run(in_daemon(lambda: seen.append(threading.current_thread().daemon)))
    assert seen == [True]


def test_what_a_call_raises_is_raised() -> None:
    def fail() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        asyncio.run(in_daemon(fail))


def test_a_process_ends_while_a_call_hangs() -> None:
    code = (
        "import asyncio, time; from weir.runtime.background import in_daemon\n"
        "async def main():\n"
        "    asyncio.create_task(in_daemon(lambda: time.sleep(600)))\n"
        "    await asyncio.sleep(0.1)\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=120, cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == 0
