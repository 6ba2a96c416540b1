"""How often looking again and again finds a difference that there is not, and how long a real one takes to be found.

    python -m benchmarks.looks

Simulated users within windows, who find a challenger's answer better, worse or as good. Without a difference the
intervals of `weir.contracts.confidence` are compared with the usual ones, over users and over events. Fixed seeds.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts.comparison import Comparison
from weir.contracts.confidence import Running

RUNS: Final = 200
WINDOWS: Final = 100
USERS: Final = 100
EVENTS: Final = 5
"""Of each user in a window: all alike."""
DISAGREE: Final = 0.1
"""Share of users for whom exactly one of the two answers has the item."""
DIFFERENCES: Final = (0.005, 0.01, 0.02, 0.05)
LONGEST: Final = 2000
"""Windows after which a run ends without a verdict."""

Floats = npt.NDArray[np.float64]


def drawn(random: np.random.Generator, difference: float, windows: int) -> Floats:
    """Return challenger less champion of users within windows (windows, USERS)."""
    better, worse = (DISAGREE + difference) / 2, (DISAGREE - difference) / 2
    found: Floats = random.choice([1.0, -1.0, 0.0], p=[better, worse, 1 - DISAGREE], size=(windows, USERS))
    return found


def words(windows: Floats) -> Iterator[str]:
    """Yield the verdict after each window."""
    running = Running()
    for window in windows:
        running = running.add((window + 1) / 2)
        yield Comparison(champion="main", challenger="new", differences=running).measured("recall").word


def usual(windows: Floats, repeats: int) -> bool:
    """Say whether the usual interval at 95 % ever leaves 0 out, each user's value being repeated."""
    values = np.repeat(windows, repeats, axis=1)
    counts = values.shape[1] * np.arange(1, len(values) + 1)
    means, squares = np.cumsum(values.sum(axis=1)) / counts, np.cumsum((values**2).sum(axis=1)) / counts
    errors = np.sqrt(np.maximum(squares - means**2, 1e-12) / counts)
    return bool((np.abs(means) > 1.96 * errors).any())


def main() -> None:
    """Print both tables."""
    random = np.random.default_rng(0)
    equal = [drawn(random, 0.0, WINDOWS) for _ in range(RUNS)]
    alarms = {
        "confidence sequence": np.mean([any(word != "not yet" for word in words(one)) for one in equal]),
        "usual interval over users": np.mean([usual(one, 1) for one in equal]),
        "usual interval over events": np.mean([usual(one, EVENTS) for one in equal]),
    }
    print(f"no difference, a look after each of {WINDOWS} windows of {USERS} users, {RUNS} runs")
    for name, share in alarms.items():
        print(f"  {name:28} a false verdict in {share:6.1%} of the runs")
    print("\ndifference   users until the verdict, median of 20 runs")
    for difference in DIFFERENCES:
        needed = [_until(drawn(random, difference, LONGEST)) for _ in range(20)]
        print(f"  {difference:8.3f}   {int(np.median(needed)):,}")


def _until(windows: Floats) -> int:
    """Return the users within windows that it takes to find the challenger better."""
    found = (number for number, word in enumerate(words(windows), start=1) if word == "better")
    return USERS * next(found, len(windows))


if __name__ == "__main__":
    main()
