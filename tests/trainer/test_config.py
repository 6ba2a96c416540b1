import pytest
from pydantic import ValidationError

from trainer.config import FeaturesConfig, LossConfig, NegativesConfig, TowerConfig, TrainerConfig


def test_settings_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="heads = 3 does not divide dimension = 64"):
        TowerConfig(heads=3)
    with pytest.raises(ValidationError, match=r"set negatives\.in_batch or negatives\.uniform"):
        TrainerConfig(negatives=NegativesConfig(in_batch=False, uniform=0))
    with pytest.raises(ValidationError, match="evaluation_k"):
        TrainerConfig(evaluation_k=(10, 10))
    with pytest.raises(ValidationError, match="half-lives must ascend"):
        TrainerConfig(half_life_seconds=(10, 5))
    with pytest.raises(ValidationError, match="greater than 0"):
        TrainerConfig(half_life_seconds=0)
    with pytest.raises(ValidationError, match=r"draws users: set tower\.kind = matrix_factorisation or lightgcn"):
        TrainerConfig(loss=LossConfig(kind="pointwise", sampling="naive"), negatives=NegativesConfig(uniform=0))
    with pytest.raises(ValidationError, match="batchsize"):
        TrainerConfig.model_validate({"batchsize": 3})


def test_defining_settings_are_those_that_decide_what_is_learnt() -> None:
    settings = TrainerConfig().defining()
    assert settings["tower.dimension"] == 64
    assert settings["negatives.correction"] == "improved"
    assert "metrics_port" not in settings
    free = {
        "metrics_port": 0,
        "export_every_windows": 7,
        "checkpoint_every_steps": 1,
        "device": "cpu",
        "index": "HNSW32",
    }
    assert TrainerConfig.model_validate(free).defining() == settings
    assert TrainerConfig(seed=1).defining() != settings
    assert TrainerConfig(tower=TowerConfig(temperature=1)).defining() != settings


def test_every_field_is_documented() -> None:
    for model in (TrainerConfig, TowerConfig, NegativesConfig, LossConfig, FeaturesConfig):
        for name, field in model.model_fields.items():
            assert field.description or name in {"tower", "negatives", "loss", "features", "optimizer"}, name


def test_only_what_nobody_has_given_is_taken_from_what_was_saved() -> None:
    config = TrainerConfig.model_validate({"seed": 3, "tower": {"layers": 2}, "device": "cpu"})
    assert config.given() == {"seed", "tower.layers", "device"}
    saved = {"seed": 5, "tower.layers": 1, "tower.kind": "sasrec", "admit_after": 2.0, "of.old": 1}
    found = config.continuing(saved)
    assert (found.seed, found.tower.layers, found.device) == (3, 2, "cpu")
    assert (found.tower.kind, found.admit_after) == ("sasrec", 2.0)
    kept = TrainerConfig().defining() | {"seed": 3, "tower.layers": 2, "tower.kind": "sasrec", "admit_after": 2.0}
    assert found.defining() == kept
