"""Pods that cannot start, for a reason that waiting does not change."""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

__all__ = ["doomed", "restarts"]

_HOPELESS: Final = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
    }
)
_CRASHES: Final = 5
"""Restarts of a container while the check waits, after which it counts as one that never runs."""
_UNPLACED_SECONDS: Final = 60.0
"""A scheduler may need the end of another pod, or a volume, before it has a place."""

Pod = Mapping[str, Any]


def restarts(pods: Iterable[Pod]) -> dict[tuple[str, str], int]:
    """Return how often each container has been started again, by uid of its pod and name."""
    return {(pod["metadata"]["uid"], one["name"]): one["restartCount"] for pod in pods for one in _containers(pod)}


def doomed(pods: Iterable[Pod], before: Mapping[tuple[str, str], int]) -> list[str]:
    """Return a sentence for each pod that cannot start; `before` are the restarts when the check began to wait."""
    return [f"pod {pod['metadata']['name']}: {why}" for pod in pods if (why := _reason(pod, before)) is not None]


def _reason(pod: Pod, before: Mapping[tuple[str, str], int]) -> str | None:
    if "deletionTimestamp" in pod["metadata"]:
        return None
    for one in _containers(pod):
        waiting = one["state"].get("waiting", {})
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _HOPELESS:
            return f"container {one['name']} cannot start: {reason}: {message}"
        crashes = one["restartCount"] - before.get((pod["metadata"]["uid"], one["name"]), 0)
        if reason == "CrashLoopBackOff" and crashes >= _CRASHES:
            return f"container {one['name']} has ended {crashes} times: {message}"
    for each in pod["status"].get("conditions", ()):
        is_unplaced = each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable"
        if is_unplaced and time.time() - _seconds(each["lastTransitionTime"]) >= _UNPLACED_SECONDS:
            return f"no node takes it: {each.get('message', '')}"
    return None


def _containers(pod: Pod) -> Iterator[Mapping[str, Any]]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from pod["status"].get(kind, ())


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
