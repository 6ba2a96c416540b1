"""Clicks on served lists, by user: each user counts once, with the share of lists that were clicked.

Users are split between champion and challenger once and for all, so what one user does, however often, is one
observation: a few who click much would make any two bundles differ otherwise. A user's lists of the first `seconds`
count, and clicks on them until twice as long after the first one; then the observation is made, and the user does not
count again. A list counts if the bundle of the user's own side gave it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import Key, columns, hash_ids
from weir.contracts.served_lists import ServedList, joined_list
from weir.contracts.variants import challenges, variant_of
from weir.serving.monitor.attribution import Click

__all__ = ["Observation", "Sides", "UserClicks"]


class Sides(NamedTuple):
    """Who is compared, and the share of users that are the challenger's."""

    champion: str
    challenger: str
    share: float

    def of(self, user: Key) -> str:
        """Return the line that a user belongs to."""
        return self.challenger if challenges(user, self.challenger, self.share) else self.champion


class Observation(NamedTuple):
    """The share of a user's lists that were clicked; `line` gave them."""

    user: Key
    line: str
    clicked: float


@dataclass
class _User:
    line: str
    since: float
    lists: list[str] = field(default_factory=list)
    clicked: set[tuple[str, int]] = field(default_factory=set)


@dataclass
class UserClicks:
    """Users whose clicks are awaited, in memory; `is_counted` says which have been observed before.

    A restart forgets those who are awaited: they begin again with their next list. `secret` is that of the store's
    keys.
    """

    sides: Sides
    seconds: float
    is_counted: Callable[[Key], bool]
    secret: str = ""
    _users: dict[Key, _User] = field(default_factory=dict, init=False)
    _lists: dict[str, list[ServedList]] = field(default_factory=dict, init=False)

    def show(self, lists: pa.Table) -> None:
        """Take in the lists of a file (`weir.contracts.served.SERVED_SCHEMA`)."""
        wanted = lists.filter(pc.is_valid(lists[columns.USER_KEY]))
        for row in wanted.to_pylist():
            key = Key(row[columns.USER_KEY])
            at, line = row[columns.SERVED_AT].timestamp(), self.sides.of(key)
            if variant_of(row[columns.BUNDLE_VERSION]) != line:
                continue
            user = self._users.get(key)
            if user is None:
                if self.is_counted(key):
                    continue
                user = self._users[key] = _User(line, at)
            if at <= user.since + self.seconds:
                token = row[columns.ATTRIBUTION_TOKEN]
                items = hash_ids(pa.array(row[columns.ITEM_IDS], pa.string()), self.secret).tolist()
                user.lists.append(token)
                one = ServedList(row[columns.BUNDLE_VERSION], row[columns.QUERY], key, items)
                self._lists.setdefault(token, []).append(one)

    def join(self, clicks: Iterable[Click]) -> None:
        """Take in clicks on lists."""
        for click in clicks:
            one = joined_list(self._lists.get(click.token, ()), click.user, click.item)
            if one is not None:
                self._users[Key(click.user)].clicked.add((click.token, one.query))

    def settled(self, now: float) -> list[Observation]:
        """Return the users whose time is over, in the order in which they came, and forget them."""
        over = [key for key, user in self._users.items() if now > user.since + 2 * self.seconds]
        return list(self._observed(over))

    def _observed(self, keys: Iterable[Key]) -> Iterator[Observation]:
        for key in keys:
            user = self._users.pop(key)
            for token in user.lists:
                self._lists.pop(token, None)
            yield Observation(key, user.line, len(user.clicked) / len(user.lists))
