"""The table of what the campaigns have counted, at the end of a run."""

from typing import Any

from tests.campaigns import tally


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if tally.ROWS:
        terminalreporter.section("campaigns")
        for line in tally.table():
            terminalreporter.write_line(line)
