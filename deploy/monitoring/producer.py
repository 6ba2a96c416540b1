"""A live log for a drill: generated events with current timestamps, and typical faults of producers."""

import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from weir.contracts import Store
from weir.demo.generator import GeneratorConfig, generate

__all__ = ["Producer"]

_PERIOD_SECONDS: Final = 0.5


class Producer(threading.Thread):
    """Writes a segment of the log twice a second until `stopped`.

    Its faults: `silent` (writes nothing), `broken` (cuts off a third of the lines), `stuck` (its clock is stuck),
    `misjoined` (attributes events to the wrong users).
    """

    def __init__(self, folder: Store, rate: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.size = folder, round(rate * _PERIOD_SECONDS)
        self.stopped, self.silent, self.broken, self.stuck, self.misjoined = (threading.Event() for _ in range(5))
        self._random = random.Random(0)  # noqa: S311 - no secret
        self._clock = time.time()

    def run(self) -> None:
        """Write segments."""
        events = _events()
        for number in itertools.count():
            if self.stopped.wait(_PERIOD_SECONDS):
                return
            if self.silent.is_set():
                continue
            lines = self._lines([dict(event) for event in itertools.islice(events, self.size)])
            self.folder.write(f"segment-{number:05d}.jsonl", "".join(lines).encode())

    def _lines(self, events: list[dict[str, Any]]) -> list[str]:
        if not self.stuck.is_set():
            self._clock = time.time()
        if self.misjoined.is_set():
            users = [event["user_id"] for event in events]
            self._random.shuffle(users)
            events = [event | {"user_id": user} for event, user in zip(events, users, strict=True)]
        lines = [json.dumps(event | {"timestamp": round(1000 * self._clock)}) + "\n" for event in events]
        if self.broken.is_set():
            lines = [line if self._random.random() > 1 / 3 else line[: len(line) // 2] + "\n" for line in lines]
        return lines


def _events() -> Iterator[dict[str, Any]]:
    """Return the valid events of the generated log, in an endless loop."""
    log = generate(GeneratorConfig(duplicates=0, outages=0, late=0, malformed=0))
    events = [json.loads(line) for line in log.lines.splitlines()]
    # A repeated event counts as a new one.
    return ({**event, "event_id": f"{lap}-{event['event_id']}"} for lap in itertools.count() for event in events)
