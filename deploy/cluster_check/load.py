"""Calls the servers from inside the cluster: ``kubectl exec --stdin deployment/weir-monitor -- python - < load.py``.

The standard input of a Python in a pod of the server's image; needs only what is there. Every caller has its own
connection, as every client has, and asks one query after the other. The last line says how many calls there were, and
of which kind those were that failed, as JSON.
"""

import json
import sys
import threading
import time
from collections import Counter

from serving.client import RetrievalClient, RetrievalError, by_user

SECONDS = 180.0
CALLERS = 4
TARGET = "dns:///weir-serving:50051"


def call(counts: "Counter[str]", slowest: list[float], end: float) -> None:
    """Ask until the end; count what happens."""
    with RetrievalClient(TARGET, timeout=10) as client:
        while (started := time.monotonic()) < end:
            try:
                client.retrieve([by_user("nobody")])
                counts["answered"] += 1
            except RetrievalError as error:
                counts[f"{type(error).__name__}: {error}"[:200]] += 1
            slowest[0] = max(slowest[0], time.monotonic() - started)
            time.sleep(0.005)


def main() -> None:
    """Call from several threads, and say what came of it."""
    each = [(Counter[str](), [0.0]) for _ in range(CALLERS)]
    end = time.monotonic() + SECONDS
    callers = [threading.Thread(target=call, args=(*one, end)) for one in each]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    total = sum((counts for counts, _ in each), Counter[str]())
    answered = total.pop("answered", 0)
    slowest = max(one[0] for _, one in each)
    sys.stdout.write(
        json.dumps({"answered": answered, "failed": dict(total), "slowest_seconds": round(slowest, 2)}) + "\n"
    )


if __name__ == "__main__":
    main()
