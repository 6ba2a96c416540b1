"""Calls the servers from inside the cluster until its standard input ends; `Load` runs it in a pod of its own.

It needs only what the server's image holds. Every caller has its own connection, as every client has, and asks one
query after the other. The first line says that all of them have been answered once; the last one how many calls there
were, and of which kind those were that failed, as JSON.
"""

import json
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from weir.serving.client import RetrievalClient, RetrievalError, by_user

CALLERS = 4
TARGET = "dns:///weir-serving:50051"


@dataclass
class Caller(threading.Thread):
    """Asks until `stop` is set, and counts what happens."""

    stop: threading.Event
    counts: "Counter[str]" = field(default_factory=Counter)
    slowest: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        """Ask."""
        with RetrievalClient(TARGET, timeout=10) as client:
            while not self.stop.wait(0.005):
                started = time.monotonic()
                try:
                    client.retrieve([by_user("nobody")])
                    self.counts["answered"] += 1
                except RetrievalError as error:
                    self.counts[f"{type(error).__name__}: {error}"[:200]] += 1
                self.slowest = max(self.slowest, time.monotonic() - started)


def main() -> None:
    """Call from several threads, and say what came of it."""
    stop = threading.Event()
    callers = [Caller(stop) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    while not all(caller.counts["answered"] for caller in callers):
        time.sleep(0.1)
    sys.stdout.write("calling\n")
    sys.stdout.flush()
    sys.stdin.read()
    stop.set()
    for caller in callers:
        caller.join()
    total = sum((caller.counts for caller in callers), Counter[str]())
    answered = total.pop("answered", 0)
    slowest = round(max(caller.slowest for caller in callers), 2)
    sys.stdout.write(json.dumps({"answered": answered, "failed": dict(total), "slowest_seconds": slowest}) + "\n")


if __name__ == "__main__":
    main()
