import asyncio
import subprocess
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path

import pytest

from weir.runtime.background import BackgroundTask, in_daemon


def fail() -> None:
    raise OSError("gone")


def test_a_task_has_a_result_as_often_as_it_is_asked_for() -> None:
    task = BackgroundTask("weir-work", threading.current_thread)
    thread = task.result()
    assert (thread.name, thread.daemon, thread.is_alive()) == ("weir-work", True, False)
    assert task.result() is thread


def test_none_is_a_result() -> None:
    assert BackgroundTask("work", lambda: None).result() is None


def test_an_error_is_raised_with_its_traceback_as_often_as_the_result_is_asked_for() -> None:
    task = BackgroundTask("work", fail)
    assert task.wait(30)
    for _ in range(2):
        with pytest.raises(OSError, match="gone") as raised:
            task.result()
        assert "fail" in [frame.name for frame in traceback.extract_tb(raised.tb)]


def test_a_task_is_waited_for_in_part_or_to_its_end() -> None:
    let_go = threading.Event()
    task = BackgroundTask("work", lambda: let_go.wait(30))
    assert not task.wait(0.01)
    assert task.running
    let_go.set()
    assert task.wait()
    assert not task.running
    assert task.result()


def test_a_task_that_was_interrupted_has_no_result() -> None:
    has_started = threading.Event()

    def work() -> None:
        has_started.set()
        while True:
            time.sleep(0.001)

    task = BackgroundTask("weir-work", work)
    assert has_started.wait(30)
    task.interrupt()
    with pytest.raises(RuntimeError, match="the thread weir-work was ended before it had a result"):
        task.result()


def test_a_task_that_has_ended_holds_its_result_and_not_its_call() -> None:
    class Large:
        def call(self) -> int:
            return 1

    large = Large()
    task, held = BackgroundTask("work", large.call), weakref.ref(large)
    del large
    assert task.result() == 1
    assert held() is None


def ended(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in another interpreter; it may take two minutes."""
    command, root = [sys.executable, "-c", code], Path(__file__).parents[3]
    return subprocess.run(command, timeout=120, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_process_waits_at_its_exit_for_a_task_that_is_awaited(is_awaited: bool) -> None:
    code = (
        "import sys, time; from weir.runtime.background import BackgroundTask\n"
        f"seconds = {1 if is_awaited else 600}\n"
        "def work():\n"
        "    time.sleep(seconds)\n"
        "    print('ended')\n"
        f"BackgroundTask('work', work, is_awaited={is_awaited})\n"
        "sys.exit(3)"
    )
    done = ended(code)
    assert (done.returncode, done.stdout, done.stderr) == (3, "ended\n" if is_awaited else "", "")


def test_a_call_runs_in_a_daemon_and_is_waited_for() -> None:
    assert asyncio.run(in_daemon(lambda: threading.current_thread().daemon))


def test_what_a_call_raises_is_raised() -> None:
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
    assert ended(code).returncode == 0
