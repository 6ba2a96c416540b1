import pytest

from weir.check.fields import Column, likely_columns
from weir.readers import LogColumns

KNOWN = LogColumns().model_dump()


def found(**kinds: str) -> list[Column]:
    return [Column(name, kind, "", {"view": 1} if name == "action" else {}) for name, kind in kinds.items()]


@pytest.mark.parametrize(
    ("kinds", "user", "item", "time"),
    [
        ({"userId": "integer", "movieId": "integer", "timestamp": "integer"}, "userId", "movieId", None),
        ({"visitorid": "integer", "itemid": "integer", "event": "text", "ts": "integer"}, "visitorid", "itemid", "ts"),
        ({"user_name": "text", "user_id_hash": "text", "track": "text"}, "user_id_hash", "track", None),
        ({"CustomerID": "text", "StockCode": "text", "InvoiceDate": "time"}, "CustomerID", "StockCode", "InvoiceDate"),
        ({"session": "text", "customer": "text", "sku": "text", "created_at": "time"}, "customer", "sku", "created_at"),
        ({"a": "text", "b": "text", "c": "integer"}, None, None, None),
        ({"Kunde": "integer", "Artikel-Nr": "text", "Zeitpunkt": "time"}, "Kunde", "Artikel-Nr", "Zeitpunkt"),
        ({"purchaser": "text", "from": "time", "until": "time"}, None, None, None),
        ({"user": "object", "product": "list", "time": "text"}, None, None, None),
    ],
)
def test_likely_names(kinds: dict[str, str], user: str | None, item: str | None, time: str | None) -> None:
    likely = likely_columns(found(**kinds), KNOWN)
    assert [likely.get(field) for field in ("user_id", "item_id", "timestamp")] == [user, item, time]


def test_no_column_is_proposed_twice() -> None:
    likely = likely_columns(found(user="text", user_item="text", event_time="time", action="text"), KNOWN)
    assert len({*likely.values()}) == len(likely)
    assert likely["event_type"] == "action"
