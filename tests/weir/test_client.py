"""What the client needs: the extra `client`, and no more."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKED = """
from tests.deploy.blocked import block, closure
block(closure([{extras}]))
import weir.client
print(len(weir.client.__all__))
"""


@pytest.mark.parametrize(("extras", "works"), [("'client'", True), ("", False)])
def test_the_client_can_be_imported_with_its_extra_alone(extras: str, works: bool) -> None:
    command = [sys.executable, "-c", BLOCKED.format(extras=extras)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (run.returncode == 0) == works, run.stderr
    assert works or "No module named" in run.stderr
