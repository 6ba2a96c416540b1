import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.runtime.supervisor import ChildSpec, GaveUpError, Supervisor


class Script:
    """Child programs and what the supervisor said of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[tuple[str, str]] = []

    def spec(self, name: str, code: str, **changes: object) -> ChildSpec:
        command = (sys.executable, "-c", textwrap.dedent(code))
        environment = dict(os.environ) | {"FOLDER": str(self.folder)}
        return ChildSpec(name, command, environment, **({"first_wait": 0.01} | changes))  # type: ignore[arg-type]

    def say(self, name: str, line: str) -> None:
        self.said.append((name, line))

    def run(self, specs: list[ChildSpec], work: Callable[[], bool], grace: float = 10) -> Supervisor:
        async def poll() -> None:
            while not work():
                await asyncio.sleep(0.02)

        async def main() -> Supervisor:
            supervisor = Supervisor(specs, self.folder, self.say, grace)
            await asyncio.wait_for(supervisor.run(poll), 60)
            return supervisor

        return asyncio.run(main())

    def pids(self, name: str) -> list[int]:
        return [int(line) for path in self.folder.glob(f"{name}.pid") for line in path.read_text().split()]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


NOTE_PID = """
    import os, pathlib, signal, subprocess, sys, time
    folder = pathlib.Path(os.environ["FOLDER"])
    def note(name, pid=None):
        with (folder / f"{name}.pid").open("a") as file:
            file.write(f"{pid or os.getpid()}\\n")
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody has reaped yet is dead enough.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_child_that_is_killed_is_restarted_and_reported(script: Script) -> None:
    spec = script.spec("sleeper", NOTE_PID + "\n    note('sleeper'); time.sleep(60)")

    def work() -> bool:
        pids = script.pids("sleeper")
        if len(pids) == 1 and alive(pids[0]):
            os.kill(pids[0], signal.SIGKILL)
        return len(pids) == 2

    supervisor = script.run([spec], work)
    assert supervisor.children[0].restarts == 1
    assert any("SIGKILL" in line and "restarting" in line for _, line in script.said)
    assert not any(alive(pid) for pid in script.pids("sleeper"))


def test_it_gives_up_after_quick_deaths_and_shows_the_last_lines(script: Script) -> None:
    code = NOTE_PID + "\n    note('faulty'); print('the disk is full'); sys.exit(3)"
    with pytest.raises(GaveUpError, match=r"status 3.*3 times(.|\n)*faulty.log(.|\n)*the disk is full"):
        script.run([script.spec("faulty", code, patience=3)], lambda: False)
    assert len(script.pids("faulty")) == 3


def test_giving_up_on_one_stops_the_others(script: Script) -> None:
    steady = script.spec("steady", NOTE_PID + "\n    note('steady'); time.sleep(60)")
    faulty = script.spec(
        "faulty",
        NOTE_PID + "\n    while not (folder / 'steady.pid').exists(): pass\n    sys.exit(1)",
        patience=1,
    )
    with pytest.raises(GaveUpError):
        script.run([steady, faulty], lambda: False)
    assert not any(alive(pid) for pid in script.pids("steady"))


def test_a_run_that_lasted_renews_the_patience(script: Script) -> None:
    code = NOTE_PID + "\n    note('brief'); time.sleep(.05); sys.exit(1)"
    spec = script.spec("brief", code, patience=2, lasting=0.01)
    script.run([spec], lambda: len(script.pids("brief")) >= 4)


def test_a_child_that_may_end_is_not_restarted(script: Script) -> None:
    spec = script.spec("once", NOTE_PID + "\n    note('once')", forever=False)
    deadline = time.monotonic() + 1
    supervisor = script.run([spec], lambda: bool(script.pids("once")) and time.monotonic() > deadline)
    assert len(script.pids("once")) == 1
    assert supervisor.children[0].finished


def test_stopping_leaves_no_grandchild(script: Script) -> None:
    code = (
        NOTE_PID
        + """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note('grandchild', child.pid); time.sleep(60)
    """
    )
    script.run([script.spec("family", code)], lambda: bool(script.pids("grandchild")))
    time.sleep(0.1)
    assert not any(alive(pid) for pid in script.pids("grandchild"))


def test_a_child_that_ignores_sigterm_is_killed(script: Script) -> None:
    code = NOTE_PID + "\n    signal.signal(signal.SIGTERM, signal.SIG_IGN); note('stubborn'); time.sleep(60)"
    script.run([script.spec("stubborn", code)], lambda: bool(script.pids("stubborn")), grace=0.2)
    assert ("stubborn", "did not stop within 0 s; killed") in script.said
    assert not any(alive(pid) for pid in script.pids("stubborn"))


def test_warnings_are_passed_on_and_everything_is_in_the_log_file(script: Script) -> None:
    code = (
        NOTE_PID
        + "\n    print('2026 INFO x: calm'); print('2026 WARNING x: storm', flush=True); note('talker'); time.sleep(60)"
    )
    script.run([script.spec("talker", code)], lambda: bool(script.pids("talker")) and bool(script.said))
    assert ("talker", "2026 WARNING x: storm") in script.said
    assert not any("calm" in line for _, line in script.said)
    assert (script.folder / "talker.log").read_text().splitlines() == ["2026 INFO x: calm", "2026 WARNING x: storm"]


PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from weir.runtime.supervisor import ChildSpec
from weir.runtime.supervisor import Supervisor

CHILD = '''
import pathlib, sys, time, os
from weir.runtime.parent import follow_parent
follow_parent()
pathlib.Path(sys.argv[1], "child.pid").write_text(str(os.getpid()))
time.sleep(60)
'''
folder = sys.argv[1]
async def forever():
    await asyncio.Event().wait()
spec = ChildSpec("child", (sys.executable, "-c", CHILD, folder), dict(os.environ))
asyncio.run(Supervisor([spec], Path(folder), lambda name, line: print(name, line, flush=True)).run(forever))
print("clean")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux only")
@pytest.mark.parametrize(("number", "clean"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGKILL, False)])
def test_however_the_supervisor_ends_no_child_is_left(tmp_path: Path, number: signal.Signals, clean: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    note = tmp_path / "child.pid"
    deadline = time.monotonic() + 30
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    child = int(note.read_text())
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert ("clean" in output) == clean
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)


def test_a_child_starts_once_the_output_of_another_shows_it(script: Script) -> None:
    slow = """
        import os, pathlib, time
        time.sleep(0.5)
        (pathlib.Path(os.environ["FOLDER"]) / "slow").touch()
        print("now ready for work", flush=True)
        time.sleep(60)
    """
    waiting = """
        import os, pathlib
        folder = pathlib.Path(os.environ["FOLDER"])
        (folder / "found").write_text(str((folder / "slow").exists()))
    """
    found = script.folder / "found"
    specs = [
        script.spec("waiting", waiting, forever=False, starts_after=("slow", "ready for")),
        script.spec("slow", slow),
    ]
    script.run(specs, lambda: found.exists() and found.read_text() != "")
    assert found.read_text() == "True"


def test_a_child_that_waits_in_vain_stops_with_the_others(script: Script) -> None:
    silent = script.spec("silent", "import time; time.sleep(60)")
    waiting = script.spec("waiting", "", starts_after=("silent", "ready"))
    ends = time.monotonic() + 0.5
    supervisor = script.run([waiting, silent], lambda: time.monotonic() > ends)
    assert supervisor.children[0].process is None
