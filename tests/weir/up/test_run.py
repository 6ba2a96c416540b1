""""""

import asyncio
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from tests.weir.up.damage import DAMAGES, whole_store
from weir.config import load_settings
from weir.runtime.supervisor import ChildSpec, Supervisor
from weir.serving.client import RetrievalClient
from weir.session import Session
from weir.up.options import UpOptions
from weir.up.prepare import Launch
from weir.up.run import _Run, tree_memory
from weir.up.status import StatusDisplay, StatusReader

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.mark.parametrize("terminal", [False, True], ids=["plain", "terminal"])
def test_no_damage_to_the_store_ends_the_stages(terminal: bool, tmp_path: Path) -> None:
    """Real processes under the supervisor; the store is damaged in every way, one after the other."""
    store = whole_store(str(tmp_path))
    output = io.StringIO()
    notes = Console(file=output, force_terminal=terminal, width=300, markup=False, emoji=False)
    session = Session(load_settings(None, {"store": store.url}), store, notes, notes)
    options = UpOptions(demo=False, once=False, log=None, seconds=1.0, ranks=1, port_offset=0, timeout=60.0)
    run = _Run(Launch(session, options, None, None, time.monotonic()))
    specs = [ChildSpec(name, SLEEPER, dict(os.environ)) for name in ("pipeline", "trainer")]

    async def main() -> list[str]:
        named = []
        with StatusDisplay(notes) as display, RetrievalClient("127.0.0.1:1", timeout=0.1) as client:
            supervisor = Supervisor(specs, tmp_path / "logs", display.say, 5.0)

            async def work() -> None:
                for damage in DAMAGES.values():
                    keep = {name: store.read(name) for name in [*store.glob("**/*.json"), "bundles/CURRENT"]}
                    name = damage(store)
                    named.append(name)
                    reader = StatusReader(store, session.settings, client, 0.0, None)
                    watching = asyncio.create_task(run._watch(supervisor, reader, display))
                    deadline = time.monotonic() + 10
                    while named.count(name) > output.getvalue().count(f"{name}: ") and time.monotonic() < deadline:
                        assert not watching.done(), watching
                        await asyncio.sleep(0.05)
                    assert not watching.done()
                    watching.cancel()
                    for file, data in keep.items():
                        store.write(file, data)
                assert all(child.process and child.process.returncode is None for child in supervisor.children)

            await asyncio.wait_for(supervisor.run(work), 120)
            assert all(child.restarts == 0 for child in supervisor.children)
        return named

    named = asyncio.run(main())
    for name in named:
        assert f"cannot read: {store.path(name)}" in output.getvalue()


HOLD = "import sys; data = b'x' * (64 << 20); print('ready', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of memory on Linux only")
def test_grandchildren_count() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    family, alone = tree_memory(process.pid), [tree_memory(int(child)) for child in children]
    process.communicate(timeout=30)
    assert len(alone) == 1
    assert 64 << 20 < alone[0] < family < 256 << 20
    assert tree_memory(process.pid) == 0


def test_a_process_that_is_gone_takes_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree_memory(process.pid) == 0
