"""Prints the report of `weir check`, and writes the settings for a log as a YAML file."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import starmap
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from weir.check.report import REQUIRED, LogReport, with_settings
from weir.config import Settings
from weir.contracts import UserError
from weir.contracts.base import columns
from weir.demo.replay import nice_lateness
from weir.readers import HINTS, OF_READING, OUTSIDE, Reason, is_topic, next_step
from weir.text import as_yaml, counted, in_words, option, plain, program, setting, shell, visible
from weir.verdict import SMALL_LOG, too_small

__all__ = [
    "UnreadableLogError",
    "in_one_line",
    "print_report",
    "proposed",
    "require_readable",
    "settings_file",
    "what_is_wrong",
]


_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_DIMENSION = 64
_ROW_BYTES = 4 * _DIMENSION + 60
"""Bytes per row of the item table: a vector, its optimiser state and the counts."""


Given: TypeAlias = Sequence[tuple[str, str]]
"""Options of the current command as (name, value), which the proposed commands repeat."""


class UnreadableLogError(UserError):
    """No row of a log is valid; the message has the reasons, and settings with which rows would be valid."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines

    def explain(self) -> list[str]:
        """Return the lines of the message."""
        return self.lines


def require_readable(report: LogReport, command: str, given: Given = ()) -> None:
    """Raise `UnreadableLogError` if no row is valid.

    The error's message repeats `command` and the `given` options, with settings that would read the log.
    """
    if report.is_readable:
        return
    lines = [f"no row of {report.log} is valid", *what_is_wrong(report)]
    if report.valid:
        again = f"{program()} {command}{_options(report.settings, given)}"
        lines += [f"these settings read {_share(report)} of it:", f"  {again}"]
        if not command.startswith("evaluate"):
            lines += ["or, to know within two minutes whether a model beats popularity:", f"  {_quick(report, given)}"]
    raise UnreadableLogError(lines)


def print_report(console: Console, report: LogReport, given: Given = ()) -> None:
    """Print a report: facts, columns, the first invalid row, and the next commands, which repeat `given` options."""
    facts = Table(box=None, show_header=False)
    for name, value in _facts(report):
        facts.add_row(plain(name, style="bold"), plain(value))
    console.print(facts)
    if report.columns:
        console.print()
        _print_columns(console, report)
    # Without a valid row, `_next_steps` has more advice than the hint.
    for lines in (what_is_wrong(report, hint=report.valid > 0), _next_steps(report, given)):
        if lines:
            console.print()
        for line in lines:
            console.print(plain(line), soft_wrap=True)


def _facts(report: LogReport) -> list[tuple[str, str]]:
    facts = [("log", f"{report.log}: {counted(report.files, 'file')}, {_size(report.bytes)}")]
    if report.rows:
        facts += [("format", ", ".join(report.formats)), ("rows", _rows(report))]
    if report.valid:
        window = report.window_seconds or 0
        within, table = "" if report.is_complete else "at least ", _size(_ROW_BYTES * report.items)
        facts += [
            ("valid", f"{_share(report)}{' with the settings below' if report.settings else ''}"),
            ("event times", _span(report)),
            ("users, items", f"{within}{counted(report.users, 'user')} and {counted(report.items, 'item')}"),
            ("window length", f"{_length(window)}: pipeline.window_seconds={window}"),
            ("item table", f"{within}{counted(report.items, 'row')}, {table} in the trainer"),
        ]
    if report.missing_ids:
        share = f"{100 * report.missing_ids / report.rows:.2f} % of the rows, which are refused"
        facts.append(("no id", f"{share}; pipeline.missing_ids lists the texts that stand for none, such as NA"))
    if report.event_types:
        shown = ", ".join(f"{kind} {count}" for kind, count in report.event_types.items())
        facts.append(("event types", f"{shown} in the first rows; pipeline.event_types says what they mean"))
    return facts


def _print_columns(console: Console, report: LogReport) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("column", "kind", "example", "read as"):
        table.add_column(name)
    for column in report.columns:
        table.add_row(*map(plain, (column.name, column.kind, column.example, column.read_as or "")))
    console.print(table)


def what_is_wrong(report: LogReport, *, hint: bool = True) -> list[str]:
    """Return lines about the invalid rows: the first row, the reasons and, with `hint`, how to fix the commonest."""
    bad = report.first_bad or report.first_bad_before
    if bad is None:
        return []
    when = "" if report.first_bad else "without the settings below, "
    lines = [f"{when}first bad row: {bad.file}, {bad.place}: {bad.detail} ({bad.reason})"]
    if bad.raw:
        lines.append(f"  {bad.raw}")
    if report.settings and report.valid_before and (before := next(iter(report.reasons_before), None)):
        refused = f"{before} refuses {report.reasons_before[before]:,} of {report.rows:,} rows"
        lines.append(f"without the settings below {refused}: {next_step(before)}")
    if report.reasons:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in report.reasons.items())
        # A few invalid rows do not call for other settings, unless the cause is outside the rows.
        is_told = 2 * report.valid < report.rows or next(iter(report.reasons)) in OUTSIDE
        mends = f"; {report.next_step}" if hint and is_told else ""
        lines.append(f"not valid: {reasons}{mends}")
    return lines


def _next_steps(report: LogReport, given: Given) -> list[str]:
    if not report.rows:
        return ["there is nothing to read: no file of a log was found, or the files hold no rows"]
    if not report.valid:
        return _unnamed(report, given)
    lines = proposed(report)
    if report.is_complete and report.valid < SMALL_LOG:
        lines.append(too_small(report.valid))
    return [
        *lines,
        f"next: {_quick(report, given)}",
        f"  or: {program()} up {_followed(report.log)}{_options(report.settings, given)}",
        f"  or: {program()} init {_path(report.log)}{_options((), given)} > weir.yaml",
    ]


def proposed(report: LogReport) -> list[str]:
    """Return the proposed settings, a line each; empty without any."""
    return ["settings:", *(f"  {setting(one)}" for one in report.settings)] if report.settings else []


def _quick(report: LogReport, given: Given) -> str:
    """Return the command that trains a model on the log and compares it with popularity, without a store."""
    options = [(name, value) for name, value in given if name != "--store"]
    return f"{program()} evaluate --quick --log {shell(report.log)}{_options(report.settings, options)}"


def _followed(log: str) -> str:
    """Return the option of `weir up` that replays a log, if it is a single file, or follows it."""
    return f"--log {shell(log)}" if is_topic(log) or Path(log).is_file() else setting(f"pipeline.log={log}")


def _unnamed(report: LogReport, given: Given) -> list[str]:
    """Return advice for a log without a valid row: how to fix the reason, or a command that names missing columns."""
    reason = next(iter(report.reasons), "")
    # The problem may be in the file itself, not in the names of its columns.
    if not report.columns or reason in OF_READING or report.next_step != HINTS[Reason(reason)]:
        return [f"no row is valid: {report.next_step}"]
    read = {column.read_as for column in report.columns}
    missing = [name for name in REQUIRED if name not in read]
    if not missing:
        return [f"no row is valid, though its columns are known: {report.next_step}"]
    settings = "".join(f" --set pipeline.columns.{name}=..." for name in missing)
    # A time column is recognised by its values: if none was found, times may have another format.
    spelling = [HINTS[Reason.UNPARSABLE_TIMESTAMP]] if columns.TIMESTAMP in missing else []
    return [
        *spelling,
        f"no row is valid: say which column is the {' and the '.join(missing)}:",
        f"  {program()} check {_path(report.log)}{_options(report.settings, given)}{settings}",
    ]


def _options(settings: Sequence[str], given: Given) -> str:
    """Return the `given` options and further settings as text for a command line, each after a space."""
    return "".join(f" {one}" for one in (*starmap(option, given), *map(setting, settings)))


def _path(log: str) -> str:
    """Return a log as a shell argument, with ``./`` in front if it starts with a dash."""
    return shell(f"./{log}" if log.startswith("-") else log)


def in_one_line(report: LogReport) -> str:
    """Return a one-line summary of the report."""
    if not report.rows:
        return "no rows"
    facts = [", ".join(report.formats), f"rows: {_rows(report)}"]
    if report.valid:
        facts += [f"{_share(report)} valid", _span(report)]
    return "; ".join(facts)


def _rows(report: LogReport) -> str:
    if report.is_complete:
        return f"{report.rows:,}"
    if report.all_rows is not None:
        return f"{report.rows:,} looked at, of about {report.all_rows:,}"
    return f"{report.rows:,} looked at, the {'newest' if is_topic(report.log) else 'first'} ones"


def _share(report: LogReport) -> str:
    share = report.valid / report.rows
    # Never round up to 100 % unless all rows are valid.
    return "100 %" if report.valid == report.rows else f"{min(99.99, 100 * share):.2f} %"


def _span(report: LogReport) -> str:
    if report.start_ms is None or report.end_ms is None:
        return "none"
    first, last = (
        datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M") for ms in (report.start_ms, report.end_ms)
    )
    return f"{first} to {last} UTC ({in_words((report.end_ms - report.start_ms) / 1000)})"


def _length(seconds: int) -> str:
    for unit, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            return counted(seconds // unit, name)
    return counted(seconds, "second")


def _size(count: int) -> str:
    return next((f"{count / size:.1f} {name}" for size, name in _SIZES if count >= size), f"{count} bytes")


def settings_file(report: LogReport, settings: Settings) -> str:
    """Return the text of a YAML file: the settings that the log needs, and optional settings as comments."""
    config = with_settings(settings.pipeline, report.settings)
    default = type(config)()
    columns = _named(report, config.columns.model_dump(), default.columns.model_dump())
    lines = [f"# {visible(report.log)}: {visible(in_one_line(report))}", "pipeline:", f"  log: {as_yaml(report.log)}"]
    lines += [
        "  columns:",
        *(f"    {name}: {as_yaml(value)}" for name, value in columns),
    ]
    if config.time_zone != default.time_zone:
        lines.append(f"  time_zone: {as_yaml(config.time_zone)}  # of times that name none")
    if config.clock_tolerance_minutes != default.clock_tolerance_minutes:
        lines.append(f"  clock_tolerance_minutes: {as_yaml(config.clock_tolerance_minutes)}")
    if config.max_weight != default.max_weight:
        lines.append(f"  max_weight: {as_yaml(config.max_weight)}")
    if config.min_time != default.min_time:
        lines.append(f"  min_time: {as_yaml(config.min_time.isoformat())}")
    if report.event_types:
        lines.append(
            "  # What each event type means: positive, negative or ignore. Without this every event is positive."
        )
        kinds = ", ".join(f"{as_yaml(kind)}: positive" for kind in report.event_types)
        lines.append(f"  # event_types: {{{kinds}}}")
    if report.window_seconds:
        live = is_topic(report.log)
        late = settings.pipeline.allowed_lateness_seconds if live else nice_lateness(report.window_seconds)
        lines.append(f"  window_seconds: {report.window_seconds}  # cannot be changed once the store holds windows")
        lines.append(f"  allowed_lateness_seconds: {late}  # how long a window waits for late events")
    return "\n".join(lines) + "\n"


def _named(report: LogReport, columns: dict[str, str], default: dict[str, str]) -> list[tuple[str, Any]]:
    """Return the (field, column) pairs to write: columns in the log, required, or different from the `default`."""
    present = {column.name for column in report.columns}
    return [
        (name, column)
        for name, column in columns.items()
        if column in present or name in REQUIRED or column != default[name]
    ]
