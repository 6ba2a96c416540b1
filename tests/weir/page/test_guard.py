from itertools import product

import pytest

from weir.page.guard import Rights


@pytest.mark.parametrize(
    ("host", "shows", "folder"),
    list(product(["127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.5", "box"], [False, True], [False, True])),  # noqa: S104
)
def test_off_loopback_it_is_read_only_and_shows_data_only_where_told_to(host: str, shows: bool, folder: bool) -> None:
    rights = Rights.on(host, shows_data=shows, has_folder=folder)
    local = host in {"127.0.0.1", "::1", "localhost"}
    assert rights.data == (local or shows)
    assert rights.click == (local and folder)
