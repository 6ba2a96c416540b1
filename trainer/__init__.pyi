from . import losses, negatives
from .config import (
    FeaturesConfig,
    LossConfig,
    NegativesConfig,
    OptimizerConfig,
    RescoringConfig,
    TowerConfig,
    TrainerConfig,
)
from .export.errors import ExportError
from .offline.bootstrap import interval
from .offline.cases import each_interaction, each_user
from .offline.data import Interactions, InteractionsError, read_interactions
from .offline.evaluator import Difference, EvaluationResult, Evaluator, Rules
from .offline.fit import Budget, Fit, Step, fit
from .offline.model import OfflineModel
from .offline.splits import Split, labelled, leave_one_out, random_per_user, temporal
from .offline.strata import popularity_deciles, popularity_strata
from .ranking import Cases, Ranked, means, per_case, rank
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
