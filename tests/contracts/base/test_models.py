import pytest
from pydantic import ValidationError

from weir.contracts.base.models import FrozenModel, StoredModel


class Settings(FrozenModel):
    k: int = 1


class Stored(StoredModel):
    k: int = 1


@pytest.mark.parametrize("model", [Settings(), Stored()])
def test_fields_cannot_be_set(model: Settings | Stored) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        model.k = 2  # type: ignore[misc]


def test_unknown_fields_are_refused_in_settings_and_ignored_in_what_is_stored() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Settings.model_validate({"k": 2, "later": 3})
    assert Stored.model_validate({"k": 2, "later": 3}) == Stored(k=2)
