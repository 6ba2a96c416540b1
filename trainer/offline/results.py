"""Result files of a comparison: ``comparison.json`` and, beside it, ``<row>-seed<n>.json`` for each run.

Files are written atomically, so a comparison can be stopped at any time, resumed from the finished runs, and
reported half-finished. Non-finite values (a diverged loss, a stratum without cases) are written as the strings
``"NaN"`` and ``"Infinity"``, because JSON has no numbers for them.
"""

import re
import unicodedata
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from weir.contracts import Store
from weir.contracts.base.errors import in_one_line
from weir.contracts.base.models import FrozenModel

__all__ = [
    "COMPARISON_NAME",
    "Comparison",
    "CurvePoint",
    "Decile",
    "ResultsError",
    "RunResult",
    "Stratum",
    "load_comparison",
    "load_results",
    "result_name",
    "save_comparison",
    "save_result",
    "slug",
]

COMPARISON_NAME = "comparison.json"

_REMEDY = "remove the file and run the comparison again"
_Document = TypeVar("_Document", bound=BaseModel)


class ResultsError(ValueError):
    """A result file cannot be used; the message names the file, the problem and the remedy."""


class _Model(FrozenModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")


class _Metrics(_Model):
    """Metrics under their own names (``recall@20``) as extra fields."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name, without the declared fields."""
        return self.__pydantic_extra__


class CurvePoint(_Model):
    """Loss and validation metrics of a run at one step."""

    step: Annotated[int, Field(ge=0)]
    seconds: float = Field(description="of training so far, without evaluation")
    loss: float = Field(description="mean over the steps since the previous point")
    metrics: dict[str, float] = Field(description="on validation")


class Stratum(_Metrics):
    """Test cases whose relevant item is in one band of popularity in training."""

    share: float = Field(description="of the test cases")


class Decile(_Metrics):
    """One tenth of the popularity scale."""

    cases: Annotated[int, Field(ge=0)]


class RunResult(_Model):
    """One row trained with one seed and tested."""

    row: str
    seed: int
    steps: int = Field(description="done")
    best_step: int = Field(description="whose model was tested")
    examples: int = Field(description="positives trained on")
    train_seconds: float
    evaluate_seconds: float
    parameters: int
    curve: tuple[CurvePoint, ...]
    metrics: dict[str, float] = Field(description="on test, means over the test cases")
    intervals: dict[str, tuple[float, float]] = Field(description="95 % bootstrap intervals over users")
    strata: dict[str, Stratum] = Field(description="head, torso and tail")
    deciles: tuple[Decile, ...] = Field(description="most popular first")


class Comparison(_Model):
    """A comparison: rows by seeds, data, and headline metric."""

    title: str
    data: str
    split: str
    rows: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    cutoffs: Annotated[tuple[int, ...], Field(min_length=1)]
    headline: str = Field(description="the metric that ranks the rows, as recall@20")
    configuration: dict[str, dict[str, JsonValue]] = Field(description="settings of each row")
    facts: dict[str, int | float | str] = Field(description="sizes of the data: users, items, train and so on")
    versions: dict[str, str]
    command: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        owners: dict[str, str] = {}
        for row in self.rows:
            if (name := slug(row)) in owners:
                raise ValueError(f"rows {owners[name]!r} and {row!r} would share the files {name}-seed*; rename one")
            owners[name] = row
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} repeat; give each once")
        if not re.fullmatch(r"[a-z_]+@(\d+)", self.headline) or int(self.headline.split("@")[1]) not in self.cutoffs:
            raise ValueError(f"headline {self.headline!r} is not metric@k with k of the cutoffs {list(self.cutoffs)}")
        if strangers := sorted(set(self.configuration) - set(self.rows)):
            raise ValueError(f"configuration of {strangers}, which are not rows; rows are {list(self.rows)}")
        return self


def slug(row: str) -> str:
    """Return a row's name for file names: ``In-batch, improved`` becomes ``in-batch-improved``.

    Raises
    ------
    ValueError
        If no letter or digit is left.
    """
    plain = unicodedata.normalize("NFKD", row).encode("ascii", "ignore").decode().lower()
    if not (words := re.findall(r"[a-z0-9.+]*[a-z0-9][a-z0-9.+]*", plain)):
        raise ValueError(f"row {row!r} has no ASCII letter or digit to name its file with; rename it")
    return "-".join(words)


def result_name(row: str, seed: int) -> str:
    """Return the file name of a run's result."""
    return f"{slug(row)}-seed{seed}.json"


def save_comparison(folder: Path, comparison: Comparison) -> Path:
    """Write ``comparison.json`` atomically and return its path."""
    return _save(folder / COMPARISON_NAME, comparison)


def save_result(folder: Path, result: RunResult) -> Path:
    """Write the result of one run atomically and return its path."""
    return _save(folder / result_name(result.row, result.seed), result)


def load_comparison(folder: Path) -> Comparison:
    """Read ``comparison.json``; raises `FileNotFoundError` or `ResultsError`."""
    return _load(folder / COMPARISON_NAME, Comparison)


def load_results(folder: Path, comparison: Comparison) -> dict[tuple[str, int], RunResult]:
    """Return the finished results by (row, seed), in the comparison's order; other files are not read.

    Raises
    ------
    ResultsError
        If a file cannot be read, holds another run than its name indicates, or lacks the headline metric.
    """
    results = {}
    for row in comparison.rows:
        for seed in comparison.seeds:
            path = folder / result_name(row, seed)
            if path.exists():
                results[row, seed] = _checked(path, row, seed, comparison.headline)
    return results


def _checked(path: Path, row: str, seed: int, headline: str) -> RunResult:
    """Read a result; raises `ResultsError` for another run than expected, or without the headline metric."""
    result = _load(path, RunResult)
    if (result.row, result.seed) != (row, seed):
        message = f"{path}: holds row {result.row!r}, seed {result.seed}, but is named for row {row!r}, seed {seed}"
        raise ResultsError(f"{message}: {_REMEDY}")
    if headline not in result.metrics:
        message = f"{path}: has no {headline}, which ranks the rows; it has {', '.join(result.metrics)}"
        raise ResultsError(f"{message}: {_REMEDY}")
    return result


def _save(path: Path, model: BaseModel) -> Path:
    Store(str(path.parent)).write(path.name, model.model_dump_json(indent=1).encode() + b"\n")
    return path


def _load(path: Path, model: type[_Document]) -> _Document:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: not found; `weir bench losses` writes it") from None
    except ValidationError as error:
        raise ResultsError(f"{path}: {in_one_line(error)}: {_REMEDY}") from error
