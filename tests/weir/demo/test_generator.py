import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from weir.demo.generator import GeneratedLog, GeneratorConfig, generate

SMALL = GeneratorConfig(users=300, items=400, events=20_000, days=10, malformed=0.002)


@pytest.fixture(scope="module")
def small() -> GeneratedLog:
    return generate(SMALL)


def parse(lines: bytes) -> tuple[list[dict[str, object]], list[bytes]]:
    """Read the log as any JSON reader would: valid interactions and the rest."""
    valid, broken = [], []
    for line in lines.splitlines():
        try:
            event = json.loads(line)
            sound = bool(event["user_id"] and event["item_id"]) and isinstance(event["timestamp"], int)
            (valid if sound and len(event["user_id"].encode()) <= 512 else broken).append(event if sound else line)
        except (ValueError, KeyError, TypeError):
            broken.append(line)
    return [event for event in valid if isinstance(event, dict)], broken


def test_the_truth_is_what_a_reader_counts(small: GeneratedLog) -> None:
    valid, broken = parse(small.lines)
    distinct = {event["event_id"] for event in valid}
    truth = small.truth
    assert len(small.lines.splitlines()) == truth.lines
    assert (len(distinct), len(valid) - len(distinct), len(broken)) == (truth.events, truth.duplicates, truth.malformed)
    assert (truth.events, truth.malformed) == (20_000, 40)
    assert truth.duplicates == pytest.approx(200, rel=0.3)
    assert truth.skips == sum(event["event_type"] == "skip" for event in {e["event_id"]: e for e in valid}.values())
    assert truth.users == len({event["user_id"] for event in valid})
    assert truth.items == len({event["item_id"] for event in valid})
    times = [event["timestamp"] for event in valid]
    assert (truth.start_ms, truth.end_ms) == (min(times), max(times))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_log(small: GeneratedLog) -> None:
    assert generate(SMALL).lines == small.lines
    assert generate(SMALL.model_copy(update={"seed": 1})).lines != small.lines


def test_late_events_arrive_hours_behind_newer_ones(small: GeneratedLog) -> None:
    valid, _ = parse(small.lines)
    first = list({event["event_id"]: event for event in valid}.values())
    times = np.array([event["timestamp"] for event in first], dtype=np.int64)
    behind = np.maximum.accumulate(times) - times
    assert int((behind > 3 * 3_600_000).sum()) == pytest.approx(small.truth.late, rel=0.1)
    assert small.truth.late == pytest.approx(0.005 * 20_000, rel=0.4)
    # All others come within a minute.
    assert int(((behind > 60_000) & (behind <= 3 * 3_600_000)).sum()) == 0


def test_a_log_may_have_neither_late_nor_double_nor_broken_lines() -> None:
    clean = generate(SMALL.model_copy(update={"outages": 0, "duplicates": 0.0, "malformed": 0.0, "skips": 0.0})).truth
    assert (clean.lines, clean.duplicates, clean.malformed, clean.late, clean.skips) == (20_000, 0, 0, 0, 0)


def by_user(valid: list[dict[str, object]]) -> dict[object, list[dict[str, object]]]:
    users: dict[object, list[dict[str, object]]] = {}
    for event in sorted({e["event_id"]: e for e in valid}.values(), key=lambda event: int(str(event["timestamp"]))):
        users.setdefault(event["user_id"], []).append(event)
    return users


def test_what_comes_next_depends_on_what_came_last_far_more_than_on_popularity(small: GeneratedLog) -> None:
    """A reader of histories has something to learn: most stay with the label."""
    valid, _ = parse(small.lines)
    labels = [[str(event["item_id"])[:-4] for event in events] for events in by_user(valid).values()]
    stays = [before == after for user in labels for before, after in pairwise(user)]
    shares = Counter(label for user in labels for label in user)
    chance = sum((count / shares.total()) ** 2 for count in shares.values())
    assert np.mean(stays) > 0.7
    assert chance < 0.15


def test_popularity_is_skewed_and_drifts(small: GeneratedLog) -> None:
    valid, _ = parse(small.lines)
    middle = (small.truth.start_ms + small.truth.end_ms) / 2
    halves = [Counter(), Counter()]  # type: list[Counter[object]]
    for event in valid:
        halves[int(str(event["timestamp"])) > middle][event["item_id"]] += 1
    total = halves[0] + halves[1]
    assert sum(count for _, count in total.most_common(40)) > 0.3 * total.total()
    top = [{item for item, _ in half.most_common(40)} for half in halves]
    assert 0.2 < len(top[0] & top[1]) / 40 < 0.95


def test_new_items_appear_over_time(small: GeneratedLog) -> None:
    valid, _ = parse(small.lines)
    first_seen: dict[object, int] = {}
    for event in valid:
        time = int(str(event["timestamp"]))
        first_seen[event["item_id"]] = min(time, first_seen.get(event["item_id"], time))
    after = sum(time > small.truth.start_ms + 3 * 86_400_000 for time in first_seen.values())
    assert after > 0.05 * len(first_seen)
