"""The end of a demo: a user asks, clicks, and asks again."""

import io
import json

import pyarrow.parquet as pq

from logs import LogColumns
from weir.demo.source import LogSource
from weir.interact import Asker

__all__ = ["last_user", "something_new"]

_ROWS = 200
_KNOWN = 50


def last_user(source: LogSource, names: LogColumns) -> str:
    """Return the user of one of the last rows of a log, as its windows will spell the id; raises `ValueError`."""
    data = source.segment(max(0, source.profile.rows - _ROWS), source.profile.rows)
    if source.profile.format == "parquet":
        return str(pq.read_table(io.BytesIO(data), columns=[names.user_id])[names.user_id][-1].as_py())
    for line in reversed(data.splitlines()):
        try:
            user = json.loads(line)[names.user_id]
        except (ValueError, KeyError, TypeError):
            continue
        if user:
            return str(user)
    raise ValueError(f"none of the last {_ROWS} rows of the log has a {names.user_id}")


def something_new(asker: Asker, user: str) -> str:
    """Return the most popular item that is not among the user's top items: a click on it says something new."""
    answer = asker.ask(user, _KNOWN)
    known = set(answer.item_ids)
    ranked = sorted(asker.popularity_ranks(answer.bundle_version).items(), key=lambda pair: pair[1])
    return next((item for item, _ in ranked if item not in known), answer.item_ids[-1])
