"""A generated log of listeners and records, with the irregularities of a real log, and its catalogue.

Item ids look like ``jazz-blue-note-042``: genre, label, number; user ids like ``anna-17``.

What a user plays next depends on what they played last: mostly another record of the same label, sometimes
another label of the same genre, at times another of their genres. A model of histories can learn this; popularity
cannot. Some lines arrive late, some twice, and a few are malformed.
"""

import json
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from weir.contracts import MAX_ID_BYTES
from weir.contracts.base.models import FrozenModel, StoredModel

__all__ = [
    "GENERATED",
    "Catalogue",
    "GeneratedLog",
    "GeneratorConfig",
    "LogTruth",
    "Users",
    "catalogue_of",
    "generate",
    "make_catalogue",
    "make_users",
]

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

_GENRES: Final = (
    *("ambient", "baroque", "blues", "chanson", "country", "disco", "dub", "flamenco", "folk", "funk"),
    *("gospel", "house", "jazz", "klezmer", "metal", "opera", "punk", "reggae", "soul", "techno"),
)
_LABELS: Final = (
    *("blue-note", "red-door", "paper-moon", "north-star", "old-mill", "glass-bead", "salt-flat", "tin-roof"),
    *("wild-rose", "iron-gate"),
)
_NAMES: Final = (
    *("anna", "bela", "carla", "dmitri", "elif", "farid", "greta", "hiro", "ines", "jonas", "kofi", "lucia"),
    *("marek", "nadia", "olga", "pablo", "quinn", "rosa", "samir", "tara", "uma", "viktor", "wanda", "xenia"),
    *("yusuf", "zoe"),
)
_INTERESTS: Final = 3

GENERATED: Final = {"event_types": {"play": "positive", "skip": "negative"}}
"""Pipeline settings for the event types of a generated log."""

_DAY_MS: Final = 86_400_000
_START_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""

_OUTAGE_MS: Final = _DAY_MS // 4
_BACKLOG_MS: Final = 3 * _DAY_MS // 2

_SAME_LABEL: Final = 0.72
_SAME_GENRE: Final = 0.88
"""Thresholds of a random draw for the next event.

Below the first the label stays, below the second the genre; otherwise any genre of interest follows.
"""

_BROKEN: Final = (
    b'{"user_id":"anna-1","item_id":"jazz-bl',
    b'{"item_id":"jazz-blue-note-000","timestamp":1767225600000,"event_type":"play"}',
    b'{"user_id":"anna-1","item_id":"","timestamp":1767225600000,"event_type":"play"}',
    b'{"user_id":"anna-1","item_id":"jazz-blue-note-000","timestamp":"yesterday","event_type":"play"}',
    b'["anna-1","jazz-blue-note-000",1767225600000]',
    b'{"user_id":"anna-1","item_id":"jazz-\xff\xfe-000","timestamp":1767225600000,"event_type":"play"}',
    b'{"user_id":"' + b"a" * (MAX_ID_BYTES + 1) + b'","item_id":"jazz-blue-note-000","timestamp":1767225600000}',
)
"""Malformed lines: cut off; no user; empty item; time in words; not an object; not UTF-8; an id that is too long."""


@dataclass(frozen=True)
class Catalogue:
    """The items of a generated log, by label: `ids` is (labels, items of a label), `genre` each label's genre.

    `weight` is the cumulative share of each item within its label by day, (days, labels, items of a label).
    `appeal` is the summed popularity of each label by day, (days, labels).
    """

    ids: npt.NDArray[np.str_]
    genre: Int
    weight: Float
    appeal: Float

    def lines(self) -> bytes:
        """Return the server's catalogue as JSON Lines: every item, tagged with its genre and its label."""
        width = self.labels_per_genre
        tags = [[_GENRES[label // width], _LABELS[label % width]] for label in range(len(self.genre))]
        rows = ({"item_id": str(item), "tags": tags[label]} for label, ids in enumerate(self.ids) for item in ids)
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)

    @property
    def labels_per_genre(self) -> int:
        """The number of labels of each genre; they are adjacent."""
        return int(len(self.genre) // (self.genre[-1] + 1))


@dataclass(frozen=True)
class Users:
    """The u users of a generated log.

    `ids` is (u,), `genres` of interest (u, 3), `shares` the cumulative share of each genre (u, 3), and `activity` the
    share of all events (u,).
    """

    ids: npt.NDArray[np.str_]
    genres: Int
    shares: Float
    activity: Float


def make_catalogue(rng: np.random.Generator, items: int, days: int) -> Catalogue:
    """Draw a catalogue of about `items` items, whose popularity follows Zipf's law and a random walk over the days.

    A quarter of the items are published over time.

    A new item starts at four times its later popularity and settles within some days.
    """
    genres, per_genre = len(_GENRES), max(1, min(len(_LABELS), items // (20 * len(_GENRES))))
    labels = genres * per_genre
    size = max(1, items // labels)
    base = -0.9 * np.log(1 + rng.permutation(labels * size).reshape(labels, size))
    drift = np.cumsum(rng.normal(0, 0.15, (days, labels, size)), axis=0)
    published = np.where(rng.random((labels, size)) < 0.25, rng.uniform(1, days, (labels, size)), -days)
    # One item of every label exists from the start, so that no label is ever empty.
    published[:, 0] = -days
    age = np.arange(days)[:, None, None] + 1 - published
    popularity = np.exp(base + drift) * (age > 0) * (1 + 3 * np.exp(-np.maximum(age, 0) / 2))
    appeal = popularity.sum(axis=2)
    weight = np.cumsum(popularity / appeal[:, :, None], axis=2)
    names = [f"{_GENRES[label // per_genre]}-{_LABELS[label % per_genre]}" for label in range(labels)]
    ids = np.array([[f"{name}-{number:03d}" for number in range(size)] for name in names])
    return Catalogue(ids, np.repeat(np.arange(genres), per_genre), weight, appeal)


def make_users(rng: np.random.Generator, users: int) -> Users:
    """Draw users: three genres each, the first preferred, and a widely varying activity."""
    genres = np.argsort(rng.random((users, len(_GENRES))), axis=1)[:, :_INTERESTS]
    shares = np.cumsum(np.tile([0.6, 0.25, 0.15], (users, 1)), axis=1)
    activity = rng.lognormal(0, 0.8, users)
    ids = np.array([f"{_NAMES[n % len(_NAMES)]}-{n // len(_NAMES)}" for n in range(users)])
    return Users(ids, genres, shares, activity / activity.sum())


class GeneratorConfig(FrozenModel):
    """Settings of `generate`."""

    seed: int = Field(default=0, ge=0, description="same seed, same log, byte for byte")
    users: int = Field(default=3000, ge=1, description="listeners")
    items: int = Field(
        default=2000, ge=40, description="approximate number of records; a quarter are published over time"
    )
    events: int = Field(default=200_000, ge=1, description="approximate number of distinct valid events")
    days: int = Field(default=30, ge=1, description="simulated days")
    duplicates: float = Field(default=0.01, ge=0, lt=1, description="share of events that are delivered twice")
    outages: int = Field(default=3, ge=0, description="outages of a source, whose events then arrive late")
    late: float = Field(default=0.005, ge=0, lt=1, description="share of events that arrive 30 to 36 hours late")
    malformed: float = Field(default=0.0005, ge=0, lt=1, description="share of malformed lines added")
    skips: float = Field(default=0.05, ge=0, lt=1, description="share of events that are skips, a negative signal")


class LogTruth(StoredModel):
    """Counts of a generated log: `lines` = `events` + `duplicates` + `malformed`; `events` are distinct and valid.

    `late` events (and some of the duplicates) arrive hours after they happened; `skips` events are negative.
    """

    lines: int
    events: int
    duplicates: int
    malformed: int
    late: int
    skips: int
    users: int
    items: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class GeneratedLog:
    """A log as JSON Lines in order of arrival, and its true counts."""

    lines: bytes
    truth: LogTruth


@dataclass(frozen=True)
class _Plays:
    """Events in order of time: user, label, item within the label and milliseconds, each of shape (n,)."""

    user: Int
    label: Int
    item: Int
    time: Int


@dataclass(frozen=True)
class _Step:
    """The present event of each of n users: a random draw, the label, a genre of interest, and the day; all (n,)."""

    where: Float
    label: Int
    taste: Int
    day: Int


def catalogue_of(config: GeneratorConfig | None = None) -> Catalogue:
    """Return the catalogue of the log that `config` describes."""
    config = config or GeneratorConfig()
    return make_catalogue(np.random.default_rng(config.seed), config.items, config.days)


def generate(config: GeneratorConfig | None = None) -> GeneratedLog:
    """Return the log that `config` describes."""
    config = config or GeneratorConfig()
    rng = np.random.default_rng(config.seed)
    catalogue = make_catalogue(rng, config.items, config.days)
    users = make_users(rng, config.users)
    plays = _simulate(rng, config, catalogue, users)
    skip = rng.random(len(plays.time)) < config.skips
    lines = _format(catalogue, users, plays, skip)
    late, arrival = _arrivals(rng, config, plays.time)
    twice = np.flatnonzero(rng.random(len(plays.time)) < config.duplicates)
    broken = rng.integers(0, len(_BROKEN), round(config.malformed * len(plays.time)))
    parts = [lines, lines.take(pa.array(twice)), pa.array(_BROKEN, pa.large_binary()).take(pa.array(broken))]
    again = arrival[twice] + rng.integers(1000, 600_000, len(twice))
    broken_at = rng.integers(plays.time[0], plays.time[-1], len(broken), endpoint=True)
    order = np.argsort(np.concatenate([arrival, again, broken_at]), kind="stable")
    truth = LogTruth(
        lines=len(order),
        events=len(plays.time),
        duplicates=len(twice),
        malformed=len(broken),
        late=int(late.sum()),
        skips=int(skip.sum()),
        users=len(np.unique(plays.user)),
        items=len(np.unique(plays.label * catalogue.ids.shape[1] + plays.item)),
        start_ms=int(plays.time[0]),
        end_ms=int(plays.time[-1]),
    )
    return GeneratedLog(_join(pa.concat_arrays(parts).take(pa.array(order))), truth)


def _arrivals(rng: np.random.Generator, config: GeneratorConfig, time: Int) -> tuple[npt.NDArray[np.bool_], Int]:
    """Return which events are late (n,), and the arrival time of each (n,), milliseconds.

    Most events arrive within a minute. In an outage of six hours a share of the events is held back, and delivered
    at once 36 hours after the start of the outage.
    """
    begins = _START_MS + (np.arange(config.outages) + 0.5) * config.days * _DAY_MS / max(config.outages, 1)
    begins = begins.astype(np.int64)
    outage = np.searchsorted(begins, time, side="right") - 1
    begin = begins[outage] if config.outages else np.full(len(time), time[-1] + 1)
    hit = (outage >= 0) & (time < begin + _OUTAGE_MS)
    share = config.late * len(time) / max(hit.sum(), 1)
    late = hit & (rng.random(len(time)) < share)
    arrival: Int = np.where(late, begin + _BACKLOG_MS, time) + rng.integers(0, 60_000, len(time))
    return late, arrival


def _simulate(rng: np.random.Generator, config: GeneratorConfig, catalogue: Catalogue, users: Users) -> _Plays:
    """Draw the events of all users: step j draws the j-th event of every user, so that no loop runs over events."""
    counts = rng.multinomial(config.events, users.activity)
    user = np.repeat(np.arange(config.users), counts)
    time = _START_MS + rng.integers(0, config.days * _DAY_MS, config.events)
    order = np.lexsort((time, user))
    time, day = time[order], (time[order] - _START_MS) // _DAY_MS
    first = np.cumsum(counts) - counts
    label = np.zeros(config.events, np.int64)
    item = np.zeros(config.events, np.int64)
    current = np.zeros(config.users, np.int64)
    for step in range(int(counts.max())):
        active = np.flatnonzero(counts > step)
        rows = first[active] + step
        where = rng.random(len(active)) if step else np.ones(len(active))
        taste = users.genres[active, _choose(rng, users.shares[active])]
        current[active] = _next_label(rng, catalogue, _Step(where, current[active], taste, day[rows]))
        label[rows] = current[active]
        item[rows] = _choose(rng, catalogue.weight[day[rows], label[rows]])
    by_time = np.argsort(time, kind="stable")
    return _Plays(user[by_time], label[by_time], item[by_time], time[by_time])


def _next_label(rng: np.random.Generator, catalogue: Catalogue, step: _Step) -> Int:
    width = catalogue.labels_per_genre
    genre = np.where(step.where < _SAME_GENRE, catalogue.genre[step.label], step.taste)
    candidates = genre[:, None] * width + np.arange(width)
    appeal = np.cumsum(np.sqrt(catalogue.appeal[step.day[:, None], candidates]), axis=1)
    moved = genre * width + _choose(rng, appeal / appeal[:, -1:])
    return np.where(step.where < _SAME_LABEL, step.label, moved)


def _choose(rng: np.random.Generator, cumulated: Float) -> Int:
    """Draw a choice for each row of cumulated shares (n, choices); return the columns (n,)."""
    drawn: Int = (cumulated[:, :-1] <= rng.random(len(cumulated))[:, None]).sum(axis=1)
    return drawn


def _format(catalogue: Catalogue, users: Users, plays: _Plays, skip: npt.NDArray[np.bool_]) -> pa.Array:
    ids = pa.array(catalogue.ids.ravel()).take(pa.array(plays.label * catalogue.ids.shape[1] + plays.item))
    event = pc.binary_join_element_wise("e", pa.array(np.arange(len(plays.time))).cast(pa.string()), "")
    text = pc.binary_join_element_wise(
        *(
            '{"event_id":"',
            event,
            '","user_id":"',
            pa.array(users.ids).take(pa.array(plays.user)),
            '","item_id":"',
            ids,
        ),
        *('","timestamp":', pa.array(plays.time).cast(pa.string()), ',"event_type":"'),
        *(pa.array(np.where(skip, "skip", "play")), '"}', ""),
    )
    return text.cast(pa.large_binary())


def _join(lines: pa.Array) -> bytes:
    ended = pc.binary_join_element_wise(lines, pa.scalar(b"\n", pa.large_binary()), pa.scalar(b"", pa.large_binary()))
    _, offsets, data = ended.buffers()
    bounds = np.frombuffer(offsets, np.int64)[ended.offset : ended.offset + len(ended) + 1]
    return bytes(data.slice(bounds[0], bounds[-1] - bounds[0]))
