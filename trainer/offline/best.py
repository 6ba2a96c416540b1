"""Early stopping: keeps the model of the best validation step."""

from torch import Tensor

from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.results import CurvePoint

__all__ = ["BestStep"]


class BestStep:
    """Keeps a copy of the model with the highest validation metric, in memory; the first one on ties.

    Parameters
    ----------
    metric
        Name of the metric, such as recall@20.
    """

    def __init__(self, metric: str) -> None:
        self.point: CurvePoint | None = None
        self.worse_since = 0
        """Validations since the best one."""
        self._metric = metric
        self._weight = Tensor()
        self._tower: dict[str, Tensor] = {}

    def see(self, point: CurvePoint, model: OfflineModel) -> None:
        """Record a validation, and copy the model if it is the best so far."""
        if self.point is not None and point.metrics[self._metric] <= self.point.metrics[self._metric]:
            self.worse_since += 1
            return
        self.point, self.worse_since = point, 0
        self._weight = model.embeddings.weight.clone()
        self._tower = {name: tensor.clone() for name, tensor in model.tower.state_dict().items()}

    def restore(self, model: OfflineModel) -> int:
        """Restore the best embeddings and tower, and return their step; the optimisers stay as they are.

        Raises
        ------
        ValueError
            Before the first validation.
        """
        if self.point is None:
            raise ValueError("there was no validation yet")
        model.embeddings.weight.copy_(self._weight)
        model.tower.load_state_dict(self._tower)
        return self.point.step
