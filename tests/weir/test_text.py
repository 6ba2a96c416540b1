"""Texts, verdicts, the client's import, and Ctrl-C from the first import to a call under way."""

import io
import logging
import math
import os
import re
import signal
import socket
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from weir.__main__ import main
from weir.cli.stages import _print_facts
from weir.cli.terminal.command import command, set_up_logging
from weir.cli.terminal.output import Bar, print_table
from weir.config import Settings
from weir.errors import CommandError, UsageError
from weir.interact import Answer, AppendedEvent, Change, Hit, print_answer, print_change
from weir.serving.client import Info
from weir.session import Session
from weir.text import in_words, plain, program, visible
from weir.trainer.offline.evaluator import Difference
from weir.up.status import Status, StatusDisplay
from weir.verdict import against, against_all


def test_ctrl_c_while_the_commands_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "weir.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "weir.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


@pytest.mark.parametrize("command", [["query", "ann"], ["click", "ann", "item"]], ids=["query", "click"])
def test_ctrl_c_while_a_server_is_waited_for(tmp_path: Path, command: list[str]) -> None:
    """The server takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "weir", *command, "--target", target, "--store", str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (130, b"")


def test_ctrl_c_ends_up_without_a_traceback(tmp_path: Path) -> None:
    ports = [
        part
        for section in ("pipeline", "trainer", "serving", "monitor")
        for part in ("--set", f"{section}.metrics_port=0")
    ]
    ports += ["--set", "serving.port=0", "--set", "serving.http_port=0", "--set", "monitor.page_port=0"]
    command = ["up", "--demo", "--store", str(tmp_path / "store"), "--ranks", "1", *ports]
    process = subprocess.Popen([sys.executable, "-m", "weir", *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "see it work" in first
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert "Traceback" not in told
    assert process.returncode in {0, 130}


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


NASTY = [
    "[red]x[/red]",
    "[link=http://evil]x[/link]",
    "[/]",
    ":smile:",
    "\x1b[31mred\x1b]0;title\x07",
    "\x9b31m",
    "a\u202egpj.exe",
    "\u2066x\u2069",
    "two\nlines\r\ttab",
    "zero\u200bwidth\ufeff",
    "\u2028line\u2029paragraph",
    "\udcff not UTF-8",
    "back\\slash",
    "日本語 é 🙂",
    "\U0001f3fb",
    "\u0301",
]
ids = st.text(
    st.one_of(st.characters(), st.sampled_from("[]/:\\\x00\x1b\x7f\x85\x9b\n\r\t\u200b\u202e\u2066\u2028\ufeff\udc80")),
    max_size=12,
)


def nasty_ids(test):  # type: ignore[no-untyped-def]
    """Draw ids, and try the known bad ones at any rate."""
    for one in NASTY:
        test = example(one)(test)
    return settings(max_examples=60, deadline=None)(given(ids)(test))


def is_control(sign: str) -> bool:
    return unicodedata.category(sign) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def check(printed: str, shown: str) -> None:
    """No control character but the line ends and colours that rich writes itself, and the id as it is spelt."""
    bare = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    assert not [sign for sign in bare if is_control(sign) and sign != "\n"], repr(bare)
    # A column may be broken into lines, at blanks too.
    assert "".join(visible(shown).split()) in "".join(bare.split())


def consoles(file: io.StringIO) -> list[Console]:
    """As commands make them, and as rich does by itself: neither may find markup."""
    return [Console(file=file, width=4000, markup=False, emoji=False), Console(file=file, width=4000)]


@nasty_ids
def test_a_visible_text_is_one_line_and_stays_so(text: str) -> None:
    shown = visible(text)
    assert not any(map(is_control, shown))
    assert visible(shown) == shown
    assert plain(text).plain == shown
    if not any(map(is_control, text)):
        assert shown == text


def test_control_characters_are_spelt_as_python_spells_them() -> None:
    assert visible("a\x1b[1m\n\u202e\U000e0041é") == r"a\x1b[1m\n\u202e\U000e0041é"


def answer(text: str) -> Answer:
    return Answer(
        user_id=text,
        hits=[Hit(rank=1, item_id=text, score=0.5, popularity_rank=None)],
        fallback=True,
        seen_bounded=True,
        bundle_version=text,
        newest_event_age_seconds=1.0,
        server_milliseconds={},
        total_milliseconds=1.0,
    )


@nasty_ids
def test_answers_spell_ids(text: str) -> None:
    given_answer = answer(text.encode("utf-8", "replace").decode())
    event = AppendedEvent(user_id=given_answer.user_id, item_id=given_answer.user_id, event_ms=0, segment="s")
    change = Change(event=event, before=given_answer, after=given_answer, seconds=1.0)
    for number in range(2):
        file = io.StringIO()
        print_answer(consoles(file)[number], given_answer)
        print_change(consoles(file)[number], change)
        check(file.getvalue(), given_answer.user_id)


def test_an_answer_says_in_a_sentence_that_not_all_seen_items_are_known() -> None:
    sentence = "ann has seen more items than are stored: some of these may have been seen before"
    for bounded in (True, False):
        file = io.StringIO()
        print_answer(consoles(file)[0], answer("ann").model_copy(update={"seen_bounded": bounded}))
        assert (sentence in file.getvalue()) == bounded


@nasty_ids
def test_tables_and_facts_spell_what_they_hold(text: str) -> None:
    for number in range(2):
        file = io.StringIO()
        console = consoles(file)[number]
        session = Session(Settings(), None, console, console)  # type: ignore[arg-type]
        print_table(session, text, ["item", "count"], [[text, "1"]])
        check(file.getvalue(), text)
        _print_facts(session, {"a": text, text: {text: 1}}, json=False)
        check(file.getvalue(), text)


@nasty_ids
def test_the_view_spells_log_lines_and_versions(text: str) -> None:
    for terminal in (False, True):
        file = io.StringIO()
        console = Console(file=file, width=4000, force_terminal=terminal)
        display = StatusDisplay(console)
        display.say("trainer", text)
        served = Info.__new__(Info)
        object.__setattr__(served, "bundle_version", text)
        object.__setattr__(served, "items", 1)
        display.show(Status(seconds=1.0, replayed=None, served=served, problems={"windows": text}))
        if terminal:
            with console.capture() as captured:
                console.print(display._live.get_renderable())  # type: ignore[union-attr]
            file.write(captured.get())
        check(file.getvalue(), text)


@nasty_ids
def test_a_bar_spells_its_text(text: str) -> None:
    file = io.StringIO()
    bar = Bar(Console(file=file, width=4000, force_terminal=True), "ingest")
    bar.show(1, 2, text)
    console = Console(file=file, width=4000)
    console.print(bar.get_renderable())
    check(file.getvalue(), text)


@pytest.mark.parametrize("kind", [CommandError, UsageError, ValueError, OSError, type("NewError", (ValueError,), {})])
@pytest.mark.parametrize("text", NASTY)
def test_an_error_is_one_line_with_the_id_in_it(
    kind: type[Exception], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @command
    def failing() -> None:
        raise kind(f"the item {text} is not known")

    with pytest.raises(BaseException) as ended:  # noqa: PT011 - typer's Exit is no exception of a kind to name
        failing()
    assert getattr(ended.value, "exit_code", None) in {1, 2}
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    check(told, text if kind in {CommandError, UsageError, OSError} else " ".join(text.split()[:1]))


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("text", NASTY)
def test_log_records_spell_ids_and_keep_the_lines_of_a_traceback(
    terminal: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        set_up_logging(Console(file=file, width=4000, force_terminal=terminal))
        try:
            raise RuntimeError(text)
        except RuntimeError:
            logging.getLogger("weir").exception("item %s", text)
    finally:
        root.handlers, root.level = before, level
    check(file.getvalue(), f"item {text}")
    assert re.search(r"Traceback (.*most recent call last.*): *\n", file.getvalue())


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (4.21, "4.2 s"),
        (119, "119.0 s"),
        (300, "5 minutes"),
        (7200, "2 hours"),
        (22 * 86_400, "22 days"),
        (-3, "-3.0 s"),
    ],
)
def test_lengths_of_time_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_command_to_repeat_names_a_weir_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == f"{folder / 'python'} -m weir"
    (folder / "weir").touch(mode=0o755)
    assert program() == str(folder / "weir")
    monkeypatch.chdir(tmp_path)
    assert program() == "env/bin/weir"
    (tmp_path / "weir").touch(mode=0o755)
    assert program() == "env/bin/weir"
    monkeypatch.setenv("PATH", str(folder))
    assert program() == "weir"


@pytest.mark.parametrize(
    ("low", "mean", "high", "words"),
    [
        (0.01, 0.02, 0.03, "the model is better than popularity: recall@20 0.120 against 0.100: +0.020, "),
        (-0.03, -0.02, -0.01, "popularity is better than the model: "),
        (-0.01, 0.02, 0.05, "not to be told apart: recall@20 "),
    ],
)
def test_a_difference_in_words_says_what_its_interval_says(low: float, mean: float, high: float, words: str) -> None:
    said = against(Difference("recall@20", mean, low, high, 2500, 300), 0.1 + mean, 0.1)
    assert said.startswith(words)
    assert f"95 % interval {low:+.3f} to {high:+.3f} over 2,500 test cases of 300 users, which " in said
    assert said.endswith("includes 0" if low < 0 < high else "excludes 0")


def test_one_user_tells_nothing() -> None:
    said = against(Difference("recall@5", 0.5, math.nan, math.nan, 9, 1), 0.6, 0.1)
    assert said.startswith("not to be told apart: recall@5 0.600 against 0.100, but all test cases are of one user")


def lead(low: float, high: float) -> Difference:
    return Difference("recall@20", (low + high) / 2, low, high, 9, 3)


def test_another_method_is_called_by_its_name() -> None:
    said = against(lead(-0.03, -0.01), 0.1, 0.12, "EASE")
    assert said.startswith("EASE is better than the model: recall@20 0.100 against 0.120: -0.020, ")


@pytest.mark.parametrize(
    ("leads", "words"),
    [
        ([(0.1, 0.2), (0.01, 0.2)], "the model is better than all of 2 simple methods"),
        ([(0.1, 0.2), (-0.1, 0.2)], "the model is better than A; not to be told apart from B"),
        (
            [(-0.2, -0.1), (-0.1, 0.2), (0.1, 0.2)],
            "the model is better than C; worse than A; not to be told apart from B",
        ),
        ([(math.nan, math.nan)], "the model is not to be told apart from A"),
    ],
)
def test_many_methods_are_told_by_what_their_intervals_say(leads: list[tuple[float, float]], words: str) -> None:
    assert against_all({name: lead(*ends) for name, ends in zip("ABC", leads, strict=False)}) == words
