"""Computation of a step's loss inputs: towers and projection, applied to the sampled rows."""

import torch
from torch import Tensor

from weir.trainer.items.placement import distinct_and_counts
from weir.trainer.items.table import PADDING
from weir.trainer.losses.inputs import LossInputs, Population, Rescored
from weir.trainer.negatives import accidental_hits, bayesian_choice, shared_pool
from weir.trainer.step.batches import Batch
from weir.trainer.step.gathered import GatheredHistories, Lookup
from weir.trainer.step.inputs import BatchRows, RankShare, SampledInputs
from weir.trainer.step.model import Fetched, Model
from weir.trainer.step.seeds import Purpose, generator
from weir.trainer.step.timer import StepTimer
from weir.trainer.towers import project, read_out
from weir.trainer.towers.in_training import Forward, in_parts, in_training

__all__ = ["StepVectors", "forward_of"]


def forward_of(model: Model) -> Forward:
    """Return the forward pass of the user tower for training: compiled, and with the precision of the settings."""
    config = model.config
    return in_training(model.tower, config.tower, compiled=config.compiled, precision=config.precision)


class StepVectors:
    """Computes a step's loss inputs from the distinct table rows that the step uses.

    Parameters
    ----------
    model
        The model to train.
    fetched
        Data of `rows`, with embeddings that require a gradient.
    rows
        Distinct table rows of the step, (n,), ascending by `Places.key`.
    places
        Index among `rows` of each of the rows `SampledInputs.used`, (m,).
    """

    def __init__(self, model: Model, fetched: Fetched, rows: Tensor, places: Tensor) -> None:
        self.model, self.rows, self.counts, self.log_q = model, rows, fetched.counts, fetched.log_q
        self._keys, self._places = model.embeddings.places.key(rows), places
        self._look_up = Lookup(model.compose(fetched.embeddings, fetched.features))

    def place(self, rows: Tensor) -> Tensor:
        """Return the indices of table rows (...) in the step's rows; -1 for rows outside the step."""
        keys = self.model.embeddings.places.key(rows.contiguous())
        place = torch.searchsorted(self._keys, keys).clamp(max=len(self.rows) - 1)
        return torch.where(self.rows[place] == rows, place, -1)

    def loss_inputs(self, sampled: SampledInputs, batch: Batch, rank: int, laps: StepTimer) -> LossInputs:
        """Return the inputs of the loss for this rank's share; `laps` times the parts ``hits`` and ``tower``."""
        model, config, rows = self.model, self.model.config, sampled.share.rows
        places, times = self._columns(sampled)
        hits = self._hits(places, sampled.share)
        laps.end("hits")
        users, positives = self._users(sampled, batch), self._vectors(self._positive_places(sampled.share))
        log_q_pos, log_q_columns = self._densities(sampled, places)
        draws = generator(config.seed, Purpose.RESAMPLING, model.position.step, rank, device=self.rows.device)
        inputs = LossInputs(
            users=users,
            positives=positives,
            temperature=config.tower.temperature,
            columns=None if places is None else self._vectors(places),
            hits=hits,
            times=times,
            log_q_pos=log_q_pos,
            log_q_columns=log_q_columns,
            own=self._own(users, positives, rows),
            extra_positives=self._items(rows.extra_positives),
            exposed=self._items(rows.exposed),
            exposed_keep=None if rows.exposed is None else rows.exposed != PADDING,
            cached=self._items(sampled.cached),
            log_q_cached=None if sampled.cached is None else self.log_q[sampled.cached],
            population=self._population(rows),
            generator=draws,
            labels=batch.labels if config.loss.needs_labels else None,
            rescored=self._rescored(sampled, users, positives),
        )
        laps.end("tower")
        return inputs

    def drawn(self, sampled: SampledInputs, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the candidates of resampling, (c,), and how often this rank drew each, (c,); empty without a cache.

        Candidates are the shared negatives, then the cached items, as table rows. `drawn` are indices into the
        candidates, of any shape.
        """
        every = () if self.model.cache is None else (sampled.columns, sampled.cached)
        parts = [part for part in every if part is not None]
        candidates = torch.cat(parts) if parts else self.rows[:0]
        counts = self.model.embeddings.weight.new_zeros(len(candidates))
        if parts and drawn is not None:
            counts.index_add_(0, drawn.flatten(), counts.new_ones(drawn.numel()))
        return candidates, counts

    def _rescored(self, sampled: SampledInputs, users: Tensor, positives: Tensor) -> Rescored | None:
        """Return the scores of the second phase, computed from detached vectors."""
        second, columns = self.model.second, sampled.rescored
        if second is None or columns is None:
            return None
        places = self.place(columns)
        hits = self._hits(places, sampled.share)
        if hits is None:
            return None
        users, positives, items = users.detach(), positives.detach(), self._vectors(places).detach()
        own = torch.arange(len(users), device=users.device)[:, None]
        pos, neg = second.scorer(users, positives, own)[:, 0], second.scorer.every_pair(users, items)
        keep = torch.ones_like(neg, dtype=torch.bool)
        keep[hits[:, 0], hits[:, 1]] = False
        return Rescored(pos, neg, keep, *self._density(sampled, columns))

    def _items(self, rows: Tensor | None) -> Tensor | None:
        """Return the vectors (..., d) of table rows (...)."""
        return None if rows is None else self._vectors(self.place(rows))

    def _vectors(self, places: Tensor) -> Tensor:
        """Return the projected vectors (..., d) of the step's rows at indices (...)."""
        return project(self._look_up(places), self.model.config.tower)

    def _columns(self, sampled: SampledInputs) -> tuple[Tensor | None, Tensor | None]:
        """Return the indices of the shared negatives in the step's rows, (C,), and their multiplicities, (C,).

        Multiplicities are None if the loss does not weight columns. Otherwise, indices are distinct and ascending, so
        that the hits are sorted and the loss need not sort them.
        """
        if sampled.columns is None:
            return None, None
        places = self.place(sampled.columns)
        if not self.model.config.loss.needs.weighs:
            return places, None
        return distinct_and_counts(places)

    def _hits(self, columns: Tensor | None, share: RankShare) -> Tensor | None:
        """Return the (row, column) pairs (H, 2) to mask, for columns at indices (C,); None if none are masked."""
        if columns is None or share.rows.forbidden is None:
            return None
        known = share.rows.forbidden[:, 1:]
        # Usually the known positives are the histories, which are already indexed. Rows outside the step mask nothing.
        masked = self._read_places(share) if torch.equal(known, share.histories) else self.place(known)
        return accidental_hits(columns, torch.cat([self._positive_places(share)[:, None], masked], 1))

    def _positive_places(self, share: RankShare) -> Tensor:
        """Return the indices of a share's positives (b,) among the rows of the step."""
        return self._places[share.histories.numel() + share.positions]

    def _read_places(self, share: RankShare) -> Tensor:
        """Return the indices of the items of histories (s, L) among the rows of the step."""
        return self._places[: share.histories.numel()].view_as(share.histories)

    def _users(self, sampled: SampledInputs, batch: Batch) -> Tensor:
        """Return the user vectors (b, d): tower output for their histories, plus their features."""
        share, tower = sampled.share, self.model.tower
        history, mask = GatheredHistories(self._look_up, self._read_places(share)), share.histories != PADDING
        if batch.positives.ndim > 1:
            users = torch.cat([read_out(tower, *part, every=True) for part in in_parts(history, mask)])
        else:
            users = forward_of(self.model)(history, mask)
        featured, features = self.model.featured_users, batch.features
        if featured is not None and features is not None:
            users = featured.compose(users, features)
        # Usually all rows are real; indexing would add a copy to the backward.
        users = users if len(share.positions) == len(users) else users[share.positions]
        return project(users, self.model.config.tower)

    def _own(self, users: Tensor, positives: Tensor, rows: BatchRows) -> Tensor | None:
        """Return the vectors (b, N, d) of each row's own negatives, chosen from candidates with Bayesian negatives."""
        config, own, vectors = self.model.config, rows.own, self._items(rows.own)
        candidates = config.negatives.bayesian_candidates
        if own is None or vectors is None or not candidates:
            return vectors
        shape = len(own), config.negatives.per_row, candidates
        scores = torch.einsum("bd,bnd->bn", users, vectors).view(shape) / config.tower.temperature
        pos = (users * positives).sum(1, keepdim=True) / config.tower.temperature
        chosen = bayesian_choice(
            pos.detach().expand(shape[:2]),
            scores.detach(),
            prior=self.log_q[own].exp().view(shape),
            keep=(own != rows.positives[:, None]).view(shape),
        )
        index = chosen[..., None, None].expand(*shape[:2], 1, vectors.shape[-1])
        return vectors.view(*shape, vectors.shape[-1]).gather(2, index)[:, :, 0]

    def _densities(self, sampled: SampledInputs, columns: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return log Q at the positives (b,) and at columns with these indices (C,); Nones if the loss needs none."""
        if columns is None or not self.model.config.loss.needs.log_q:
            return None, None
        return self._density(sampled, self.rows[columns])

    def _density(self, sampled: SampledInputs, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return log Q at the positives (b,) and at table rows (C,), as a row sees the pool (`Pool.others`)."""
        config, others = self.model.config.negatives, sampled.pool.others
        sampler = shared_pool(config, self.log_q, self.model.in_use)
        of_positive = sampler.log_q_own if config.correction == "improved" else sampler.log_q
        return of_positive(sampled.share.rows.positives, others), sampler.log_q(columns, others)

    def _population(self, rows: BatchRows) -> Population | None:
        """Return the statistics of the label matrix, if the loss needs them."""
        if not self.model.config.loss.needs.population:
            return None
        totals, counts = self.model.totals, self.counts[rows.positives]
        return Population(rows.user_counts, counts, totals.positives, (totals.users, totals.items))
