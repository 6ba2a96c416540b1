"""How near each log Q correction comes to the gradient of the full softmax, on real batches and on independent draws.

    python -m benchmarks.clustered generated    # a small generated log
    python -m benchmarks.clustered films        # MovieLens-1M, from WEIR_DATA

A tower is trained for some hundred steps. Then, for batch after batch of histories, the gradient of each estimate (of
all embeddings and of the tower) is compared with that of the full softmax on the same rows, under the same mask. A
pool is drawn from the batch or independently from Q. Bias is the length of the mean difference, relative to that of the
mean gradient, from products of different batches only, so that noise adds nothing to it; noise is the deviation of a
single batch.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import torch
import typer
from torch import Tensor

from benchmarks.harness import DATA, Data, command_line, head, interactions_of, row
from benchmarks.proof import GENERATED, generated
from weir.readers import LogConfig
from weir.trainer.losses import exclude_positive, full_softmax, sampled_softmax
from weir.trainer.offline.compare import ROWS
from weir.trainer.offline.data import read_interactions
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.fit import Budget, fit
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.splits import temporal
from weir.trainer.ranks.workers import Workers, deterministic
from weir.trainer.settings.trainer import LossConfig, OptimizerConfig, TowerConfig, TrainerConfig
from weir.trainer.step.batches import Batch
from weir.trainer.step.inputs import sample_inputs
from weir.trainer.step.timer import StepTimer
from weir.trainer.step.vectors import StepVectors

app = command_line(__doc__)

Steps = Annotated[int, typer.Option(min=1, help="Steps of training before the gradients are compared.")]
Batches = Annotated[int, typer.Option(min=2, help="Batches of 64 histories whose gradients are compared.")]


class Rows(NamedTuple):
    """The b rows of a batch against the V items of the catalogue.

    `logits` (b, V) and `target` (b,) as `full_softmax` takes them; `segment` (b,) numbers the history of each row;
    `own` (b, V) is True for the other items of its history and its positives.
    """

    logits: Tensor
    target: Tensor
    segment: Tensor
    own: Tensor

    @property
    def pos(self) -> Tensor:
        """Logits of the positives, (b,)."""
        return self.logits.gather(1, self.target[:, None])[:, 0]

    @property
    def positive(self) -> Tensor:
        """True for each row's positive, (b, V)."""
        return torch.zeros_like(self.own).scatter_(1, self.target[:, None], value=True)


@dataclass(frozen=True)
class Estimate:
    """A pool of negatives and a correction; `masks_own` leaves the items of a row's own history out."""

    pool: str
    size: int
    correction: str
    masks_own: bool = True


ESTIMATES: Final = [
    *(
        Estimate(pool, 256, how)
        for pool in ("batch", "independent")
        for how in ("none", "standard", "improved", "masked")
    ),
    *(Estimate(pool, 64, "masked") for pool in ("batch", "one per history", "independent")),
    *(Estimate("batch", 256, how, masks_own=False) for how in ("standard", "improved", "clustered")),
    *(Estimate("mixed", 256, how) for how in ("standard", "improved", "masked")),
]


@app.command("generated")
def of_generated(steps: Steps = 300, batches: Batches = 40) -> None:
    """Compare on the small log of `make proof-quick`."""
    with tempfile.TemporaryDirectory() as folder:
        log = generated(Path(folder), "--users", "300", "--items", "300", "--events", "15000")
        types = GENERATED.partition("=")[2]
        compare(log, LogConfig.model_validate_json(f'{{"event_types": {types}}}'), steps, batches)


@app.command("films")
def of_films(data: Data = DATA, steps: Steps = 300, batches: Batches = 40) -> None:
    """Compare on MovieLens-1M."""
    compare(interactions_of(data, "ml-1m"), LogConfig(), steps, batches)


def compare(log: Path, rules: LogConfig, steps: int, batches: int) -> None:
    """Train a tower on the first 80 % of a log, and print the table."""
    interactions = read_interactions(str(log), rules)
    train = temporal(interactions).train
    tower = TowerConfig(kind="sasrec", layers=1, dropout=0.0)
    optimizer = OptimizerConfig(embedding_memory=1.0)
    base = TrainerConfig(device="cpu", batch_size=64, tower=tower, optimizer=optimizer)
    config = ROWS["mixed, improved"].configure(base, 0)
    with deterministic():
        model = OfflineModel.fresh(config, interactions, train)
        fit(model, interactions, train, Budget(steps))
        model.config = config.model_copy(update={"loss": LossConfig(kind="full_softmax"), "seed": 1})
        drawn = training_batches(model.config, interactions, train)
        found = [gradients(model, next(drawn), number) for number in range(batches)]
    head("pool", "columns", "own history", "correction", "bias", "cosine", "noise", "weight / true weight")
    for estimate in ESTIMATES:
        ours, wanted, weights = (torch.stack(parts) for parts in zip(*(one[estimate] for one in found), strict=True))
        bias, cosine, noise = measures(ours, wanted)
        own = "masked" if estimate.masks_own else "kept"
        cells = (f"{number:.3f}" for number in (bias, cosine, noise, float(weights.mean())))
        row(estimate.pool, estimate.size, own, estimate.correction, *cells)


def measures(ours: Tensor, wanted: Tensor) -> tuple[float, float, float]:
    """Return bias, cosine of the means, and noise of gradients (K, m) against those wanted (K, m)."""
    batches, apart, mean = len(ours), ours - wanted, wanted.mean(0)
    noise = apart.sub(apart.mean(0)).square().sum() / (batches - 1)
    square = apart.mean(0).square().sum() - noise / batches
    cosine = torch.cosine_similarity(ours.mean(0), mean, 0)
    return float(square.clamp(min=0).sqrt() / mean.norm()), float(cosine), float(noise.sqrt() / mean.norm())


def gradients(model: OfflineModel, batch: Batch, number: int) -> dict[Estimate, tuple[Tensor, Tensor, Tensor]]:
    """Return, for each estimate, its flat gradient, that of the full softmax, and mean weight over true weight."""
    rows, leaves = rows_of(model, batch)
    log_q, draw = model.log_q[model.live], torch.Generator().manual_seed(number)

    def flat(losses: Tensor) -> Tensor:
        found = torch.autograd.grad(losses.mean(), leaves, retain_graph=True, materialize_grads=True)
        return torch.cat([one.flatten() for one in found])

    targets, found = {}, {}
    for masks_own in (True, False):
        losses = full_softmax(rows.logits.masked_fill(rows.own & masks_own, -torch.inf), rows.target)
        targets[masks_own] = flat(losses), -torch.expm1(-losses.detach())
    for estimate in ESTIMATES:
        columns = pool(estimate, rows, log_q, draw)
        losses, weight = losses_of(estimate, rows, columns, log_q)
        wanted, true_weight = targets[estimate.masks_own]
        found[estimate] = flat(losses), wanted, (weight / true_weight).mean()
    return found


def rows_of(model: OfflineModel, batch: Batch) -> tuple[Rows, list[Tensor]]:
    """Return the rows of a batch, and what gradients are taken by: all embeddings, and the tower."""
    sampled = sample_inputs(model, batch, Workers())
    table, places = model.select(sampled.used)
    fetched = model.fetch(model.embeddings.route(table), table)
    leaf = fetched.embeddings.requires_grad_()
    step = StepVectors(model, fetched, table, places).loss_inputs(sampled, batch, 0, StepTimer())
    live, segment = model.live, sampled.share.positions // batch.positives.shape[1]
    items = torch.searchsorted(live, torch.cat([batch.histories, batch.positives], 1)[segment]).clamp(max=len(live) - 1)
    known = torch.cat([batch.histories, batch.positives], 1)[segment] == live[items]
    own = torch.zeros(len(segment), len(live) + 1, dtype=torch.bool)
    own.scatter_(1, items.where(known, torch.tensor(len(live))), value=True)
    target = torch.searchsorted(live, sampled.share.rows.positives)
    own = own[:, :-1].scatter(1, target[:, None], value=False)
    return Rows(step.pooled, target, segment, own), [leaf, *model.tower.parameters()]


def pool(estimate: Estimate, rows: Rows, log_q: Tensor, draw: torch.Generator) -> Tensor:
    """Draw the columns of an estimate, numbers of items (n,)."""
    positives, size = rows.target, estimate.size
    uniform = torch.randint(len(log_q), (size // 2,), generator=draw)
    order = torch.randperm(len(positives), generator=draw)
    if estimate.pool == "independent":
        return torch.multinomial(log_q.exp(), size, replacement=True, generator=draw)
    if estimate.pool == "mixed":
        return torch.cat([positives[order[: size // 2]], uniform])
    if estimate.pool == "one per history":
        first = torch.full((int(rows.segment.max()) + 1,), -1).scatter_(0, rows.segment[order], order)
        return positives[first[first >= 0]]
    return positives[order[:size]]


def losses_of(estimate: Estimate, rows: Rows, columns: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses (b,) of an estimate, and the factor of each row's gradient, (b,).

    That is the estimated probability of not choosing the positive.
    """
    if estimate.pool == "mixed":
        log_q = ((log_q.exp() + 1 / len(log_q)) / 2).log()
    absent = rows.positive | rows.own if estimate.masks_own or estimate.correction == "clustered" else rows.positive
    neg, keep, log_q_pos = rows.logits[:, columns], ~absent[:, columns], log_q[rows.target]
    density, correction = log_q[columns], estimate.correction
    if correction == "improved":
        density = exclude_positive(density, log_q_pos)
    elif correction in {"masked", "clustered"}:
        density = exclude_positive(density, log_share(absent, log_q))
        correction = "improved"
    if estimate.correction == "clustered":
        neg, keep, density = with_own(rows, neg, keep, density)
    losses = sampled_softmax(rows.pos, neg, log_q_pos=log_q_pos, log_q_neg=density, keep=keep, correction=correction)
    kept = keep.sum(1).clamp(min=1).log()
    shift = {"none": torch.zeros_like(kept), "standard": log_q_pos, "improved": -kept}[correction]
    scores = (neg if correction == "none" else neg - density).masked_fill(~keep, -torch.inf)
    return losses, torch.sigmoid(scores.logsumexp(1) + shift - rows.pos).detach()


def log_share(absent: Tensor, log_q: Tensor) -> Tensor:
    """Return log Q(F) of the items F that each row leaves out, (b,), given as booleans (b, V)."""
    return (absent * log_q.exp()).sum(1).clamp(max=1 - 1e-6).log()


def with_own(rows: Rows, neg: Tensor, keep: Tensor, density: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Add each row's own items with the weight 1 that their presence for certain gives them.

    The improved correction divides by the kept columns k of a row: a weight 1 is the density 1 / k, and that of the
    drawn columns, of which there are k_o, is to be k_o / k of what it was.
    """
    drawn = keep.sum(1, keepdim=True).to(density)
    total = (drawn + rows.own.sum(1, keepdim=True).to(density)).clamp(min=1).log()
    drawn_density = density + drawn.clamp(min=1).log() - total
    own_density = (-total).expand_as(rows.own)
    joined = torch.cat([drawn_density, own_density], 1)
    return torch.cat([neg, rows.logits], 1), torch.cat([keep, rows.own], 1), joined


if __name__ == "__main__":
    app()
