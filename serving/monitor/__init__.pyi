from .config import MonitorConfig
from .loop import LimitsError, monitor
from .results import Examples, Freshness, WindowRecall, recorded

__all__ = [
    "Examples",
    "Freshness",
    "LimitsError",
    "MonitorConfig",
    "WindowRecall",
    "monitor",
    "recorded",
]
