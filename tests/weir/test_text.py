import io
import logging
import re
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from weir.cli.stages import _print_facts
from weir.cli.terminal.command import command, set_up_logging
from weir.cli.terminal.output import Bar, print_table
from weir.config import Settings
from weir.errors import CommandError, UsageError
from weir.interact import Answer, AppendedEvent, Change, Hit, print_answer, print_change
from weir.serving.client import Info
from weir.session import Session
from weir.text import in_words, plain, program, visible
from weir.up.status import Status, StatusDisplay

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
