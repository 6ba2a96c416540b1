"""Measures what users get: recall on events that the model has not seen, through the real server, and freshness."""

from serving.monitor.config import MonitorConfig
from serving.monitor.loop import Monitor, monitor
from serving.monitor.results import Freshness, WindowRecall, recorded

__all__ = ["Freshness", "Monitor", "MonitorConfig", "WindowRecall", "monitor", "recorded"]
