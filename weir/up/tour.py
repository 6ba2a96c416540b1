"""The end of a demo: a query, a click, and the changed answer."""

from contracts import columns
from logs import Block, BlockId, LogConfig, Validator
from weir.demo.source import LogSource
from weir.interact import Asker

__all__ = ["last_user", "something_new"]

_ROWS = 200
_KNOWN = 50


def last_user(source: LogSource, config: LogConfig) -> str:
    """Return the user of one of the last rows of a log, with the id as in its windows; raises `ValueError`."""
    rows = source.rows(max(0, source.profile.rows - _ROWS), source.profile.rows)
    valid, _ = Validator(config).validate(Block(BlockId("log", 0), rows))
    if not len(valid.rows):
        raise ValueError(f"none of the last {_ROWS} rows of the log is valid")
    return str(valid.rows[columns.USER_ID][-1].as_py())


def something_new(asker: Asker, user: str) -> str:
    """Return the most popular item that is not among the user's top items: a click on it changes the answer."""
    answer = asker.ask(user, _KNOWN)
    known = set(answer.item_ids)
    ranked = sorted(asker.popularity_ranks(answer.bundle_version).items(), key=lambda pair: pair[1])
    return next((item for item, _ in ranked if item not in known), answer.item_ids[-1])
