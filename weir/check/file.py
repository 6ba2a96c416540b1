"""`weir init`: the settings for a log as a YAML file."""

import json
from typing import Any

from weir.check.report import REQUIRED, LogReport, with_settings
from weir.check.text import in_one_line
from weir.config import Settings
from weir.text import visible

__all__ = ["settings_file"]


def settings_file(report: LogReport, settings: Settings) -> str:
    """Return the file: what the log needs, with a comment each, and what may be worth a change as comments."""
    config = with_settings(settings.pipeline, report.settings)
    default = type(config)()
    lines = [f"# {visible(report.log)}: {visible(in_one_line(report))}", "pipeline:", f"  log: {_value(report.log)}"]
    lines += [
        "  columns:",
        *(f"    {name}: {_value(value)}" for name, value in _named(report, config.columns.model_dump())),
    ]
    if config.time_zone != default.time_zone:
        lines.append(f"  time_zone: {_value(config.time_zone)}  # of times that name none")
    if config.min_time != default.min_time:
        lines.append(f"  min_time: {_value(config.min_time.isoformat())}")
    if report.event_types:
        lines.append(
            "  # What each event type means: positive, negative or ignore. Without this every event is positive."
        )
        kinds = ", ".join(f"{_value(kind)}: positive" for kind in report.event_types)
        lines.append(f"  # event_types: {{{kinds}}}")
    if report.window_seconds:
        late = max(60, report.window_seconds // 100)
        lines.append(f"  window_seconds: {report.window_seconds}  # cannot be changed once the store holds windows")
        lines.append(f"  allowed_lateness_seconds: {late}  # how long a window waits for late events")
    return "\n".join(lines) + "\n"


def _named(report: LogReport, columns: dict[str, str]) -> list[tuple[str, Any]]:
    """Return the columns that are there, and those that must be."""
    present = {column.name for column in report.columns}
    return [(name, column) for name, column in columns.items() if column in present or name in REQUIRED]


def _value(value: object) -> str:
    # JSON of a single value is YAML, on one line.
    return json.dumps(value, ensure_ascii=False)
