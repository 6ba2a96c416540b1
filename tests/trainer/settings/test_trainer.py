import pytest
from pydantic import ValidationError

from weir.contracts.bundles.variants import VariantError
from weir.trainer.settings.trainer import (
    FeaturesConfig,
    LossConfig,
    NegativesConfig,
    RescoringConfig,
    TowerConfig,
    TrainerConfig,
)


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
    with pytest.raises(
        ValidationError, match=r"loss\.kind = full_softmax has none; allowed: sampled_softmax, bce, gbce"
    ):
        TrainerConfig(loss=LossConfig(kind="full_softmax"), rescoring=RescoringConfig(kind="mixture_of_logits"))
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
    for model in (TrainerConfig, TowerConfig, NegativesConfig, LossConfig, FeaturesConfig, RescoringConfig):
        for name, field in model.model_fields.items():
            assert field.description or name in {"tower", "negatives", "loss", "features", "optimizer", "rescoring"}, (
                name
            )


def test_only_what_nobody_has_given_is_taken_from_what_was_saved() -> None:
    config = TrainerConfig.model_validate({"seed": 3, "tower": {"layers": 2}, "device": "cpu"})
    assert config.given() == {"seed", "tower.layers", "device"}
    saved = {"seed": 5, "tower.layers": 1, "tower.kind": "sasrec", "admit_after": 2.0, "of.old": 1}
    found = config.continuing(saved)
    assert (found.seed, found.tower.layers, found.device) == (3, 2, "cpu")
    assert (found.tower.kind, found.admit_after) == ("sasrec", 2.0)
    kept = TrainerConfig().defining() | {"seed": 3, "tower.layers": 2, "tower.kind": "sasrec", "admit_after": 2.0}
    assert found.defining() == kept


def test_how_many_candidates_are_scored_again_decides_what_a_bundle_holds_and_not_what_is_learnt() -> None:
    on = {"kind": "mixture_of_logits"}
    few, many = (TrainerConfig.model_validate({"rescoring": on | {"candidates": count}}) for count in (100, 300))
    assert few.defining() == many.defining() != TrainerConfig().defining()
    assert few.recipe()["rescoring"]["candidates"] == 100
    assert TrainerConfig.model_validate(few.recipe()) == few


def test_without_a_second_phase_a_recipe_does_not_mention_it() -> None:
    plain = TrainerConfig.model_validate({"rescoring": {"dimension": 16}})
    assert "rescoring" not in plain.recipe()
    assert not TrainerConfig.model_validate(plain.recipe()).rescoring.on


VARIANTS = {"flat": {"negatives": {"correction": "none"}}, "slow": {"optimizer": {"learning_rate": 1e-5}, "seed": 3}}


def test_a_variant_is_the_settings_with_some_of_them_replaced() -> None:
    config = TrainerConfig.model_validate({"batch_size": 64, "tower": {"dimension": 32}, "variants": VARIANTS})
    flat, slow = config.of_variant("flat"), config.of_variant("slow")
    assert (flat.batch_size, flat.tower.dimension, flat.negatives.correction) == (64, 32, "none")
    assert (slow.seed, slow.optimizer.learning_rate, slow.optimizer.weight_decay) == (3, 1e-5, 0.01)
    assert flat.variants == slow.variants == config.of_variant("main").variants == {}
    assert (
        config.of_variant("main").defining()
        == config.defining()
        == TrainerConfig.model_validate({"batch_size": 64, "tower": {"dimension": 32}}).defining()
    )
    assert flat.given() >= {"batch_size", "tower.dimension", "negatives.correction"}
    assert "negatives.uniform" not in flat.given()


def test_each_variant_shows_its_metrics_on_a_port_of_its_own() -> None:
    config = TrainerConfig.model_validate({"variants": VARIANTS, "metrics_port": 4000})
    assert [config.of_variant(name).metrics_port for name in ("main", "flat", "slow")] == [4000, 4010, 4020]
    free = TrainerConfig.model_validate({"variants": VARIANTS, "metrics_port": 0})
    assert free.of_variant("slow").metrics_port == 0
    named = {"flat": {"seed": 1, "metrics_port": 7}}
    assert TrainerConfig.model_validate({"variants": named}).of_variant("flat").metrics_port == 7


@pytest.mark.parametrize(
    ("variants", "problem"),
    [
        ({"main": {"seed": 1}}, r"variants\.main: is the name of these settings"),
        ({"new": {}}, r"variants\.new: changes nothing of what is trained"),
        ({"new": {"metrics_port": 1}}, r"variants\.new: changes nothing of what is trained"),
        ({"new": {"sed": 1}}, r"variants\.new: sed: Extra inputs"),
        ({"new": {"tower": {"heads": 3}}}, r"variants\.new: tower: .*heads = 3 does not divide"),
        ({"new": {"variants": {"newer": {"seed": 2}}}}, r"variants\.new: changes nothing"),
        ({"New one": {"seed": 1}}, "match pattern"),
        ({"a--b": {"seed": 1}}, "match pattern"),
    ],
)
def test_variants_that_cannot_be_trained_are_refused_by_name(variants: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TrainerConfig.model_validate({"variants": variants})


def test_an_unknown_variant_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(VariantError, match="there is no fast; allowed: main, flat, slow"):
        TrainerConfig.model_validate({"variants": VARIANTS}).of_variant("fast")
