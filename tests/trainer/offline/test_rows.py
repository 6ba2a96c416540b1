import math
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.offline.logs import everything, log_of, small
from weir.trainer.config import TrainerConfig
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.results import slug
from weir.trainer.offline.rows import FAMILIES, ROWS, choose_rows
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.step import train_step

# Fewer items than the 256 negatives that the rows draw.
LOG = log_of([row % 30 for row in range(360)], [row % 50 for row in range(360)])
TOWERS = [
    (name, "sasrec" if family == "softmax" else "matrix_factorisation")
    for family, rows in FAMILIES.items()
    for name in rows
]


@pytest.mark.parametrize(("name", "kind"), [*TOWERS, ("BPR", "lightgcn"), ("full softmax", "lightgcn")])
def test_every_row_learns_with_the_tower_of_its_family(name: str, kind: str) -> None:
    config = ROWS[name].configure(small(kind), 3)
    model = OfflineModel.fresh(config, LOG, everything(LOG), ROWS[name].estimator)
    before = model.embeddings.weight.clone()
    for batch in islice(training_batches(config, LOG, everything(LOG)), 3):
        assert math.isfinite(train_step(model, batch, Workers()).loss)
    assert model.embeddings.weight.isfinite().all()
    assert (model.embeddings.weight != before).any()


@pytest.mark.parametrize("name", ROWS)
def test_a_row_changes_the_loss_and_the_negatives_alone(name: str) -> None:
    base = small("matrix_factorisation", tower={"dropout": 0.3}, batch_size=24)
    config = ROWS[name].configure(base, 7)
    assert config.seed == 7
    left = {"loss", "negatives", "seed"}
    assert config.model_dump(exclude=left) == base.model_dump(exclude=left)
    assert TrainerConfig.model_validate(config.model_dump()) == config


def test_no_two_rows_are_the_same_method_or_share_a_file() -> None:
    methods = [
        (ROWS[name].configure(small("matrix_factorisation"), 0).model_dump_json(), ROWS[name].estimator)
        for name in ROWS
    ]
    assert len(set(methods)) == len(methods)
    assert len({slug(name) for name in ROWS}) == len(ROWS) == sum(map(len, FAMILIES.values()))


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["all", *FAMILIES, *ROWS]), min_size=1, max_size=5))
def test_rows_are_chosen_by_family_and_by_name_each_once(wanted: list[str]) -> None:
    chosen = choose_rows(" ; ".join(wanted))
    parts = [ROWS if name == "all" else FAMILIES.get(name) or {name: ROWS[name]} for name in wanted]
    assert list(chosen) == list(dict.fromkeys(name for part in parts for name in part))
    assert all(chosen[name] is ROWS[name] for name in chosen)


@pytest.mark.parametrize("wanted", ["BPRR", "softmax; nothing", "", "BPR, DCL", "bpr"])
def test_an_unknown_row_is_refused_with_what_is_allowed(wanted: str) -> None:
    with pytest.raises(ValueError, match="no such row or family; allowed: all, ") as refused:
        choose_rows(wanted)
    assert repr(wanted.rpartition("; ")[2]) in str(refused.value)
    assert all(name in str(refused.value) for name in [*FAMILIES, *ROWS])
