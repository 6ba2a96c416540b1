"""However many ranks share the batches, training comes to the same parameters; three ranks share none evenly."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ranks import run_on_ranks
from tests.trainer.step.lives_of_ranks import gone_on
from tests.trainer.step.steps_of_ranks import trained
from tests.trainer.step.test_model import KINDS, configured
from tests.trainer.support import same_tensors
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from weir.contracts import Store
from weir.contracts.storage.documents import read_document
from weir.contracts.verification import verify
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.losses import LOSSES
from weir.trainer.settings.towers import kinds
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.progress import Evaluation

UNSEEN = 1e-10
"""How far the bias of the keys may be off: it adds the same to all logits of a query, so attention does not see it. Its
gradient is rounding alone, some 1e-18, and AdamW divides by hardly more than its epsilon of 1e-8."""


def settings_of(config: TrainerConfig) -> dict[str, TrainerConfig]:
    """Return settings for each tower, and for each loss that several ranks can share and that draws alike on all."""
    config = configured(config, {"tower": {"dropout": 0.0}})
    found = {f"tower {kind}": configured(config, {"tower": {"kind": kind}}) for kind in kinds(knows_users=False)}
    for name, sections in KINDS.items():
        kind = sections.get("loss", {}).get("kind", "sampled_softmax")
        # The first is a loss of whole batches, the second draws by rank.
        if not LOSSES[kind].user_counts and kind != "resampled_softmax":
            found[f"loss {name}"] = configured(config, sections)
    return found


def on_ranks(ranks: int, script: str, *arguments: str) -> None:
    """Run a script of this folder."""
    run_on_ranks(ranks, Path(__file__).with_name(script), *arguments, seconds=400)


def trained_on(ranks: int, store: Store, settings: dict[str, TrainerConfig], dtype: str, out: Path) -> None:
    plain = json.dumps({name: config.model_dump(mode="json") for name, config in settings.items()})
    on_ranks(ranks, "steps_of_ranks.py", store.url, plain, dtype, str(out))


def assert_near(found: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    # A feature that an item does not have is not a number.
    assert torch.equal(found.isnan(), expected.isnan()), name
    off = (found - expected).abs().nan_to_num()
    if name.endswith("key_value.bias"):
        keys, off = off.chunk(2)
        assert keys.max() <= UNSEEN, (name, keys.max())
    assert off.max() <= 1e-12, (name, off.max())


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, torch.Tensor]]:
    """What one rank comes to, by settings; filled by the first test that needs it, as all have the same window."""
    return {}


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_training_comes_to_the_same_parameters_with_any_number_of_ranks(
    writer: WindowWriter, config: TrainerConfig, tmp_path: Path, alone: dict[str, dict[str, torch.Tensor]], ranks: int
) -> None:
    synthetic(writer, windows=1, events=75, exposed=3, said=True)
    settings = settings_of(config)
    trained_on(ranks, writer.store, settings, "float64", tmp_path)
    for setting, chosen in settings.items():
        if setting not in alone:
            alone[setting] = trained(writer.store, chosen, Workers(), torch.float64)
        parameters = alone[setting]
        first, *others = (torch.load(tmp_path / f"{setting}.{rank}.pt") for rank in range(ranks))
        for name, value in parameters.items():
            assert value.isfinite().all()
            assert_near(first[name], value, f"{setting}: {name}")
            assert all(torch.equal(first[name], other[name]) for other in others), (setting, name)


def test_float32_is_the_same_bit_for_bit_each_time(
    store: Store, writer: WindowWriter, config: TrainerConfig, tmp_path: Path
) -> None:
    synthetic(writer, windows=1, events=75)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        trained_on(3, store, {"all": config}, "float32", tmp_path / name)
    one, two = (torch.load(tmp_path / name / "all.2.pt") for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


def items_come_and_go(writer: WindowWriter) -> None:
    """Write windows in which the table doubles twice, old items leave their rows to new ones, and features start."""
    synthetic(writer, windows=3, events=60)
    for number, items in ((3, 1100), (6, 2100)):
        hour = 3_600_000 * number
        names = [f"much {number} {n}" for n in range(items)]
        users, times = [f"u{n % 400}" for n in range(items)], np.arange(items) + hour
        writer.commit(users, names, times, span=(hour, hour + 3_600_000))
        writer.features = FEATURES
        synthetic(writer, first=number + 1, windows=2, events=60, items=40, seed=number, said=number == 6)


def test_a_run_goes_on_with_any_other_number_of_ranks(tmp_path: Path, config: TrainerConfig) -> None:
    alone, shared = Store(str(tmp_path / "alone")), Store(str(tmp_path / "shared"))
    for store in (alone, shared):
        items_come_and_go(WindowWriter(store))
    config = configured(config, {"tower": {"dropout": 0.0}, "features": {"buckets": 8}})
    given = {"batch_size": 64, "item_ttl_seconds": 9000.0, "evaluation_filter_seen": True}
    config = config.model_copy(update=given)
    expected = gone_on(alone, config, Workers(), range(9))
    gone_on(shared, config, Workers(), range(2))
    for ranks, first, last in ((3, 2, 5), (2, 5, 9)):
        on_ranks(ranks, "lives_of_ranks.py", shared.url, config.model_dump_json(), f"[{first}, {last}]", str(tmp_path))
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert len(one["embeddings.squares"]) == 4096
    assert expected.keys() == one.keys()
    assert same_tensors(one, two) == []
    for name in expected.keys() - {"progress"}:
        if one[name].is_floating_point():
            assert_near(one[name], expected[name], name)
        else:
            assert torch.equal(one[name], expected[name]), name
    evaluations = alone.glob("evaluations/*/*.json")
    assert len(evaluations) == 9
    for name in evaluations:
        one, two = (read_document(store, name, Evaluation).model_dump() for store in (alone, shared))
        assert {field for field in one if two[field] != pytest.approx(one[field])} == set(), name
    assert len(list(shared.glob("bundles/*/MANIFEST.json"))) == 3
    # Bundles are exported here without an exporter, which would keep the trial of the promoted one.
    assert [found.name for found in verify(shared).findings] == ["bundles/TRIAL.json"]
