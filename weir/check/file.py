"""`weir init`: generate the YAML settings file for a log."""

from typing import Any

from weir.check.report import REQUIRED, LogReport, with_settings
from weir.check.text import in_one_line
from weir.config import Settings
from weir.demo.source import nice_lateness
from weir.readers import is_topic
from weir.text import as_yaml, visible

__all__ = ["settings_file"]


def settings_file(report: LogReport, settings: Settings) -> str:
    """Return the file: the settings that the log needs, and optional ones as comments."""
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
    """Return the columns to write: present in the log, required, or different from the default."""
    present = {column.name for column in report.columns}
    return [
        (name, column)
        for name, column in columns.items()
        if column in present or name in REQUIRED or column != default[name]
    ]
