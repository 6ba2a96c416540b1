from . import losses, negatives
from .export.onnx_models import ExportError
from .offline.data import Interactions, InteractionsError, read_interactions
from .offline.evaluator import Difference, EvaluationResult, Evaluator, Rules
from .offline.fit import Budget, Fit, Step, fit
from .offline.model import OfflineModel
from .offline.splits import Split, each_interaction, each_user, labelled, leave_one_out, random_per_user, temporal
from .offline.statistics import interval, popularity_deciles, popularity_strata
from .ranking import Cases, Ranked, means, per_case, rank
from .settings.trainer import (
    FeaturesConfig,
    LossConfig,
    NegativesConfig,
    OptimizerConfig,
    RescoringConfig,
    TowerConfig,
    TrainerConfig,
)
from .state.checkpoint import CheckpointMismatchError, DamagedCheckpointError
from .stream.progress import TrainProgress, TrainSummary
from .train import train

__all__ = [
    "Budget",
    "Cases",
    "CheckpointMismatchError",
    "DamagedCheckpointError",
    "Difference",
    "EvaluationResult",
    "Evaluator",
    "ExportError",
    "FeaturesConfig",
    "Fit",
    "Interactions",
    "InteractionsError",
    "LossConfig",
    "NegativesConfig",
    "OfflineModel",
    "OptimizerConfig",
    "Ranked",
    "RescoringConfig",
    "Rules",
    "Split",
    "Step",
    "TowerConfig",
    "TrainProgress",
    "TrainSummary",
    "TrainerConfig",
    "each_interaction",
    "each_user",
    "fit",
    "interval",
    "labelled",
    "leave_one_out",
    "losses",
    "means",
    "negatives",
    "per_case",
    "popularity_deciles",
    "popularity_strata",
    "random_per_user",
    "rank",
    "read_interactions",
    "temporal",
    "train",
]
