import io

import pytest
from rich.console import Console
from rich.text import Text

from weir.up.display import StatusDisplay
from weir.up.status import Status


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=160), file


def test_lines_of_processes_carry_their_names_and_survive_brackets() -> None:
    out, file = console(terminal=False)
    StatusDisplay(out).say("trainer", "WARNING [/red] odd [bold]text")
    assert file.getvalue() == " trainer | WARNING [/red] odd [bold]text\n"


def test_plain_lines_come_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    out, file = console(terminal=False)
    now = [100.0]
    monkeypatch.setattr("weir.up.display.time.monotonic", lambda: now[0])
    with StatusDisplay(out) as display:
        for seconds in (100.0, 101.0, 109.0, 111.0):
            now[0] = seconds
            display.show(Status(seconds=seconds, replayed=0.5))
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert "100 s; log: 0 events in 0 panes" in lines[0]
    assert "50% of the replay done" in lines[0]
    assert "served: nothing yet: waiting for the first window to end" in lines[0]


@pytest.mark.parametrize(
    ("status", "awaited"),
    [
        (
            Status(seconds=1.0, replayed=None, longest_seconds=19.0),
            "the first events, which are answered after 19.0 s at most",
        ),
        (Status(seconds=1.0, replayed=0.0), "the first window to end"),
        (Status(seconds=1.0, replayed=0.1, windows=1), "the trainer to make the first bundle"),
        (Status(seconds=1.0, replayed=0.1, windows=1, trained_sequence=0), "the server to load the first bundle"),
    ],
)
def test_what_is_awaited_until_the_first_answer_is_said(status: Status, awaited: str) -> None:
    out, file = console(terminal=False)
    StatusDisplay(out).show(status)
    assert f"served: nothing yet: waiting for {awaited};" in file.getvalue()


def test_a_terminal_gets_a_live_table() -> None:
    out, file = console(terminal=True)
    with StatusDisplay(out) as display:
        display.show(Status(seconds=3.0, replayed=0.25))
        display.say("server", "ready")
    shown = [line.strip() for line in Text.from_ansi(file.getvalue()).plain.splitlines()]
    assert "weir up, 3 s" in shown
    # Each fact has a line of its own, the bar too.
    assert [line.split()[0] for line in shown if line.startswith(("replay", "log", "trained"))][:3] == [
        "replay",
        "log",
        "trained",
    ]
    assert "ready" in file.getvalue()


def test_what_cannot_be_read_is_said_once_until_it_can_be_read_again() -> None:
    out, file = console(terminal=False)
    display = StatusDisplay(out)
    for problems in ({}, {"windows": "a.json: bad"}, {"windows": "a.json: bad"}, {}, {"windows": "a.json: bad"}):
        display.show(Status(seconds=1.0, replayed=None, problems=problems))
    assert file.getvalue().count("weir | cannot read: a.json: bad\n") == 2


def test_a_terminal_that_has_gone_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    # Rich sends the standard output of a program whose pipe has gone to nowhere.
    monkeypatch.setattr("os.dup2", lambda *files: None)
    for terminal in (False, True):
        display = StatusDisplay(Console(file=Gone(), width=160, force_terminal=terminal))
        display.say("trainer", "ready")
        display.show(Status(seconds=1.0, replayed=None))


def test_why_the_newest_bundle_is_not_served_is_shown() -> None:
    out, file = console(terminal=False)
    with StatusDisplay(out) as display:
        display.show(Status(seconds=1.0, replayed=None, held="held: recall@20 is 0.1, of the current bundle 0.4"))
    assert "newest bundle: held: recall@20 is 0.1, of the current bundle 0.4" in file.getvalue()
