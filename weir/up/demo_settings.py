"""Settings for a demo on two cores: small towers, short histories, windows that suit the log."""

from pathlib import Path
from typing import Any, Final

from weir.demo.generator import GENERATED
from weir.demo.source import LogProfile

__all__ = ["demo_settings", "log_settings"]

_SMALL: Final[dict[str, Any]] = {
    "pipeline": {"history_length": 20, "user_shards": 2, "idle_seconds": 1.0, "poll_seconds": 0.2},
    "trainer": {
        "batch_size": 128,
        "tower": {"dimension": 32, "history_length": 20, "layers": 1, "heads": 2},
        "negatives": {"uniform": 128},
        "evaluation_examples": 500,
        "export_every_windows": 1,
    },
    "monitor": {"examples_per_window": 200, "queries_per_request": 32},
}
_LARGE_LOG: Final = 400_000
"""From this many rows on, two cores keep up only with larger batches."""


def demo_settings(folder: Path, profile: LogProfile, *, generated: bool) -> dict[str, Any]:
    """Return what replaces the defaults in a demo; `folder` is for the replay's segments."""
    settings = {section: dict(values) for section, values in _SMALL.items()}
    settings["pipeline"] |= log_settings(folder, profile)["pipeline"] | (GENERATED if generated else {})
    if profile.rows > _LARGE_LOG:
        settings["trainer"] |= {"batch_size": 1024, "negatives": {"uniform": 512}}
    return settings


def log_settings(folder: Path, profile: LogProfile) -> dict[str, Any]:
    """Return the settings that depend on the replayed log: the folder of its segments, and the window.

    The window is the shortest usual length that divides the log's span into at most 60
    (`weir.demo.source.nice_window`); it stays open for a hundredth of its length.
    """
    window = profile.window_seconds
    return {
        "pipeline": {"log": str(folder), "window_seconds": window, "allowed_lateness_seconds": max(60, window // 100)}
    }
