"""Names of all columns of interactions, windows and bundles."""

from typing import Final

__all__ = [
    "ATTRIBUTION_TOKEN",
    "AVAILABLE_FROM",
    "AVAILABLE_UNTIL",
    "BUNDLE_VERSION",
    "COUNT",
    "EVENT_ID",
    "EVENT_KEY",
    "EVENT_TYPE",
    "EXPOSED",
    "FALLBACK",
    "FEATURES",
    "HISTORY",
    "ITEM_ID",
    "ITEM_IDS",
    "ITEM_KEY",
    "LABEL",
    "POPULARITY",
    "POSITION",
    "QUERY",
    "ROW",
    "SERVED_AT",
    "TAGS",
    "TIMESTAMP",
    "USER_FEATURES",
    "USER_ID",
    "USER_KEY",
    "WEIGHT",
]

USER_ID: Final = "user_id"
ITEM_ID: Final = "item_id"
TIMESTAMP: Final = "timestamp"
EVENT_ID: Final = "event_id"
EVENT_TYPE: Final = "event_type"
WEIGHT: Final = "weight"
ATTRIBUTION_TOKEN: Final = "attribution_token"  # noqa: S105 - a column, no secret

USER_KEY: Final = "user_key"
ITEM_KEY: Final = "item_key"
EVENT_KEY: Final = "event_key"
LABEL: Final = "label"
HISTORY: Final = "history"
EXPOSED: Final = "exposed"
POSITION: Final = "position"
FEATURES: Final = "features"
USER_FEATURES: Final = "user_features"

COUNT: Final = "count"
ROW: Final = "row"
POPULARITY: Final = "popularity"

TAGS: Final = "tags"
AVAILABLE_FROM: Final = "available_from"
AVAILABLE_UNTIL: Final = "available_until"

QUERY: Final = "query"
SERVED_AT: Final = "served_at"
BUNDLE_VERSION: Final = "bundle_version"
FALLBACK: Final = "fallback"
ITEM_IDS: Final = "item_ids"
