"""What times would add to the towers that read histories: the time between the last item and the query.

    python -m benchmarks.times ml-1m                      # the default tower, on MovieLens-1M, from WEIR_DATA
    python -m benchmarks.times ml-1m --tower hstu

Models that differ only in what they know train on the same batches: the first 80 % of a log in order of time, with a
positive at each place of a history, as `weir bench losses` does. Each of the last 10 % is then a test. The moment of a
query is the time of the event that follows, which tells more than a server knows: films rated on one page have the
same second. So recall is also printed by the time that has passed since the event before. All that times add is zero at
first, so that training begins as without them.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch import Tensor, nn

from benchmarks.harness import DATA, Data, command_line, head, interactions_of, row
from weir.trainer.config import NegativesConfig, OptimizerConfig, TowerConfig, TrainerConfig
from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.offline.bootstrap import interval
from weir.trainer.offline.cases import Past
from weir.trainer.offline.data import Interactions, Ints, read_interactions
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.rows import ROWS
from weir.trainer.offline.splits import Split, temporal
from weir.trainer.ranking import Ranked, per_case, user_vectors
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.step.adamw import AdamW
from weir.trainer.step.batches import Batch
from weir.trainer.step.step import train_step
from weir.trainer.towers.tower import Tower

app = command_line(__doc__)

Floats = npt.NDArray[np.float64]
METRICS: Final = ("recall@20", "ndcg@20")
_ROW: Final = ROWS["mixed, standard"]
_PASSED: Final = {"same second": (0, 1), "within an hour": (1, 3600), "later": (3600, 2**62)}
"""Seconds since the event before, by name."""

_WIDTH: Final = 0.301
"""Of a bucket, in natural logarithms of seconds, as in the code that HSTU's authors published."""
BUCKETS: Final = 72
"""The last one begins after 60 years."""
VARIANTS: Final = {"nothing": None, "time since the last item": 1, "time since the last item, in hours": 3600}
"""The unit in which the time since the last item is known, in seconds."""


def bucket(seconds: Tensor) -> Tensor:
    """Return buckets of seconds, of any shape, equally wide in their logarithm; 0 seconds, or less, have bucket 0."""
    return (torch.log1p(seconds.clamp(min=0).float()) / _WIDTH).long().clamp(max=BUCKETS - 1)


class Timed(Tower):
    """A tower that is told times, around a tower of the product; `grain` is their unit, in seconds."""

    def __init__(self, tower: Tower, config: TowerConfig, grain: int) -> None:
        super().__init__(config)
        self.tower, self.grain = tower, grain
        # One half is added to the history, the other to the users.
        self.by_gap = nn.Parameter(torch.zeros(BUCKETS, 2 * config.dimension))

    def tell(self, times: Tensor, moments: Tensor) -> None:
        """Take the seconds of the items read next, (B, L), and those of the query after each of them, (B, L)."""
        self._added = self.by_gap[bucket((moments - times) // self.grain)].chunk(2, -1)

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) at the newest moments, for item vectors (B, L, d) and `mask` (B, L)."""
        read, users = self._added
        found: Tensor = self.tower(history + read, mask) + users[:, -1]
        return found

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, L, d) after each position, at its moment."""
        read, users = self._added
        return self.tower.every_position(history + read, mask) + users


@app.command()
def compare(
    name: Annotated[str, typer.Argument(help="a data set with times: ml-1m or ml-small")],
    *,
    data: Data = DATA,
    tower: Annotated[str, typer.Option(help="a tower that reads sequences")] = "recency",
    dropout: Annotated[float, typer.Option(min=0, max=0.9)] = 0.0,
    steps: Annotated[int, typer.Option(min=1, help="of each run, with 64 histories each")] = 1500,
    longer: Annotated[float, typer.Option(min=1, help="train the first once more, for its steps times this")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="runs of each variant")] = 3,
    cases: Annotated[int, typer.Option(min=1, help="test events, at most")] = 20_000,
) -> None:
    """Train each variant, and print recall and NDCG beside those of the first."""
    log = TimedLog.of(read_interactions(str(interactions_of(data, name))), cases)
    config = TowerConfig(kind=tower, dropout=dropout, expansion=1)
    plans = {one: (grain, steps) for one, grain in VARIANTS.items()}
    if longer > 1:
        more = round(longer * steps)
        plans[f"nothing, {more:,} steps"] = VARIANTS["nothing"], more
    runs = {one: [train(log, config, *plan, seed) for seed in range(seeds)] for one, plan in plans.items()}
    print(f"\n{name}, {tower}: {len(log.test.cases):,} tests, {seeds} seeds, {steps:,} steps\n")
    _print(log, runs)


@dataclass(frozen=True, eq=False)
class TimedLog:
    """A log and its split, where events stand for items, so that a history says when as well as what.

    `rows` and `times` (`FIRST_ITEM` + N,) are the table row of each event's item, and its second, 0 for no event.
    """

    interactions: Interactions
    split: Split
    test: Evaluator
    rows: Tensor
    times: Tensor
    asked: Ints
    """The events of the test cases, (C,)."""

    @classmethod
    def of(cls, interactions: Interactions, cases: int) -> "TimedLog":
        """Split a log by time; test on at most so many `cases`, always the same."""
        split = temporal(interactions)
        times = interactions.timestamps
        assert times is not None  # noqa: S101 - the split has refused a log without
        rules = Rules("interaction", (20,))
        test = Evaluator.of(interactions, split.train, split.test, rules, at_most=cases)
        asked = Evaluator.of(_events(interactions), split.train, split.test, rules, at_most=cases)
        front = np.full(FIRST_ITEM, PADDING)
        rows = np.concatenate([front, interactions.items + FIRST_ITEM])
        seconds = np.concatenate([front, times // 1000])
        tables = torch.from_numpy(rows), torch.from_numpy(seconds)
        return cls(interactions, split, test, *tables, asked.cases.relevant.values)

    def batches(self, config: TrainerConfig) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        """Yield the batches of `training_batches`, and when the items of histories and positives came, both (B, L)."""
        for batch in training_batches(config, _events(self.interactions), self.split.train):
            histories, positives = self.rows[batch.histories], self.rows[batch.positives]
            rows = batch._replace(histories=histories, positives=positives, known=histories)
            yield rows, self.times[batch.histories], self.times[batch.positives]

    def histories(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the events before those of the tests, and what followed each of them, both (C, `length`)."""
        past = Past.of_interactions(_events(self.interactions), self.asked).histories(length)
        followed = torch.cat([past[:, 1:], torch.from_numpy(self.asked + FIRST_ITEM)[:, None]], 1)
        return past, followed

    def passed(self) -> Ints:
        """Return the seconds since the event before that of each test, (C,); from 1970 on, where there is none."""
        past, followed = self.histories(1)
        return (self.times[followed] - self.times[past])[:, 0].numpy()


def _events(interactions: Interactions) -> Interactions:
    return replace(interactions, items=np.arange(len(interactions)))


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model's metrics of each test (C,), and the CPU seconds of its training."""

    values: dict[str, Floats]
    seconds: float


def train(log: TimedLog, tower: TowerConfig, grain: int | None, steps: int, seed: int) -> Run:
    """Train one model and test it."""
    base = TrainerConfig(
        device="cpu",
        batch_size=64,
        tower=tower,
        negatives=NegativesConfig(mask_history=False),
        optimizer=OptimizerConfig(embedding_memory=1.0),
    )
    with deterministic():
        model = fresh(log, _ROW.configure(base, seed), grain)
        started = time.process_time()
        for batch, times, moments in islice(log.batches(model.config), steps):
            tell(model, times, moments)
            train_step(model, batch, Workers())
        seconds = time.process_time() - started
        values = {name: np.asarray(found) for name, found in per_case(rank(log, model), [20]).items()}
    typer.echo(f"grain {grain}, seed {seed}: recall@20 {values[METRICS[0]].mean():.4f}, {seconds:.0f} s", err=True)
    return Run(values, seconds)


def fresh(log: TimedLog, config: TrainerConfig, grain: int | None) -> OfflineModel:
    """Return a model before its first step, with the tower of the product itself where it knows nothing of times."""
    model = OfflineModel.fresh(config, log.interactions, log.split.train)
    if grain is not None:
        model.tower = Timed(model.tower, config.tower, grain)
        of = config.optimizer
        model.optimizer = AdamW(model.tower.parameters(), of.learning_rate, of.weight_decay)
    return model


def tell(model: OfflineModel, times: Tensor, moments: Tensor) -> None:
    """Let the tower know the times of what it reads next, if it knows of times."""
    if isinstance(model.tower, Timed):
        model.tower.tell(times, moments)


@torch.no_grad()
def rank(log: TimedLog, model: OfflineModel) -> Ranked:
    """Rank all items for every test, as `Evaluator.rank` does, with the times."""
    model.tower.eval()
    (read, items), config = model.vectors(), model.config.tower
    unseen = torch.ones(len(read), dtype=torch.bool)
    unseen[model.live] = False
    rows = log.rows.masked_fill(unseen[log.rows], PADDING)
    past, followed = log.histories(config.history_length)

    def scores(numbers: Tensor) -> Tensor:
        tell(model, log.times[past[numbers]], log.times[followed[numbers]])
        users = user_vectors(model.tower, config, read, rows[past[numbers]])
        return (users @ items.T).masked_fill_(unseen[FIRST_ITEM:], -torch.inf)

    return log.test.rank_by(scores)


def _print(log: TimedLog, runs: dict[str, list[Run]]) -> None:
    passed, first = log.passed(), next(iter(runs.values()))
    some = {name: (passed >= low) & (passed < high) for name, (low, high) in _PASSED.items()}
    apart = [cell for metric in METRICS for cell in (metric, "apart, by seed", "95 % over users")]
    head("knows", *apart, *(f"{name} ({of.mean():.0%})" for name, of in some.items()), "CPU s")
    for name, found in runs.items():
        cells = [cell for metric in METRICS for cell in _apart(log, found, first, metric)]
        by_passed = [f"{np.mean([run.values[METRICS[0]][of].mean() for run in found]):.4f}" for of in some.values()]
        row(name, *cells, *by_passed, f"{np.mean([run.seconds for run in found]):.0f}")


def _apart(log: TimedLog, found: list[Run], first: list[Run], metric: str) -> list[str]:
    """Return a metric, and by how much it is above that of the first variant: each seed's mean, and the interval."""
    own = np.stack([run.values[metric] for run in found])
    spread = f" ± {own.mean(1).std(ddof=1):.4f}" if len(own) > 1 else ""
    mean = f"{own.mean():.4f}{spread}"
    if found is first:
        return [mean, "", ""]
    apart = own - np.stack([run.values[metric] for run in first])
    low, high = interval(apart.mean(0), log.test.cases.users, generator=np.random.default_rng(0))
    return [mean, " ".join(f"{one:+.4f}" for one in apart.mean(1)), f"{low:+.4f} to {high:+.4f}"]


if __name__ == "__main__":
    app()
