"""Served lists by token, and which of them an event joins: one rule for all that joins the two."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import columns
from weir.contracts.keys import hash_ids

__all__ = ["ServedList", "joined_list", "lists_by_token"]


class ServedList(NamedTuple):
    """The answer to one `query` of a call: the `user` it named, if any, and the keys of the `items`, best first."""

    version: str
    query: int
    user: int | None
    items: list[int]


def lists_by_token(lists: pa.Table, tokens: set[str], secret: str) -> dict[str, list[ServedList]]:
    """Return the lists of some tokens, given those of a file (`SERVED_SCHEMA`) and the secret of the store's keys."""
    wanted = lists.filter(pc.is_in(lists[columns.ATTRIBUTION_TOKEN], value_set=pa.array(sorted(tokens), pa.string())))
    found = defaultdict[str, list[ServedList]](list)
    for row in wanted.to_pylist():
        items = hash_ids(pa.array(row[columns.ITEM_IDS], pa.string()), secret).tolist()
        one = ServedList(row[columns.BUNDLE_VERSION], row[columns.QUERY], row[columns.USER_KEY], items)
        found[row[columns.ATTRIBUTION_TOKEN]].append(one)
    return found


def joined_list(lists: Iterable[ServedList], user: int, item: int) -> ServedList | None:
    """Return the list of a call that an event joins: it holds the item and, where the query named a user, is theirs."""
    return next((one for one in lists if one.user in {None, user} and item in one.items), None)
