"""The cost of the in-batch softmax beside the three matrix products that every such loss needs.

    OMP_NUM_THREADS=1 python -m benchmarks.loss time      # forward and backward, contenders take turns in one run
    OMP_NUM_THREADS=1 python -m benchmarks.loss memory    # peak of one forward and backward; Linux

The products are the logits, the gradient of the queries and the gradient of the items, into allocated memory. The plain
loss is `sampled_softmax` over all logits, with a mask made from the list of hits. Ratios are medians over rounds, in
each of which every contender runs once.

The peak is the kernel's high-water mark of resident memory (VmHWM), beyond the inputs and without losses and gradients,
in a process of its own for every contender.
"""

import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn import functional

from benchmarks.harness import command_line, head, printed, restart_peak, row, status
from weir.trainer.losses import exclude_positive, sampled_softmax, sampled_softmax_in_batch

app = command_line(__doc__)
Contender = Callable[[], list[Tensor]]
CORRECTIONS = ("none", "standard", "improved")
TEMPERATURE = 0.1
DIMENSION = 64
ROUNDS = 15
Rows = Annotated[int, typer.Option(help="rows B of the batch")]
Columns = Annotated[int, typer.Option(help="columns N, the batch's own positives first")]


class Problem(NamedTuple):
    """Embeddings, the pairs outside the sum, and log Q, as `sampled_softmax_in_batch` takes them."""

    query: Tensor
    items: Tensor
    hits: Tensor
    log_q: Tensor


@app.command("time")
def print_times(rows: Rows = 4096, columns: Columns = 12288) -> None:
    """Print seconds and ratios."""
    problem = synthetic(rows, columns)
    contenders = {"products": products(problem)}
    contenders |= {f"{name}, {one}": loss(problem, one) for one in CORRECTIONS for name, loss in LOSSES.items()}
    seconds = {name: np.empty(ROUNDS) for name in contenders}
    for number in range(-1, ROUNDS):
        for name, call in contenders.items():
            started = time.perf_counter()
            call()
            if number >= 0:
                seconds[name][number] = time.perf_counter() - started
    middle = {name: float(np.median(found)) for name, found in seconds.items()}
    ratio = {name: float(np.median(found / seconds["products"])) for name, found in seconds.items()}
    print(f"three products: {middle['products']:.3f} s\n")
    head("correction", "chunked, s", "plain, s", "chunked / products", "plain / products", "chunked / plain")
    for one in CORRECTIONS:
        chunked, plain = f"chunked, {one}", f"plain, {one}"
        between = float(np.median(seconds[chunked] / seconds[plain]))
        times = [f"{middle[name]:.3f}" for name in (chunked, plain)]
        row(f"`{one}`", *times, *(f"{value:.2f}" for value in (ratio[chunked], ratio[plain], between)))


@app.command("memory")
def print_memory(rows: Rows = 4096, columns: Columns = 12288) -> None:
    """Print peaks of extra memory, as shares of the matrix of logits."""
    head("correction", *LOSSES)
    for one in CORRECTIONS:
        extra = [int(printed("benchmarks.loss", "extra", rows, columns, one, name)) for name in LOSSES]
        chunked_share, plain_share = (size / (4 * rows * columns) for size in extra)
        row(f"`{one}`", f"{chunked_share:.3f}", f"{plain_share:.2f}")


@app.command("extra", hidden=True)
def print_extra(rows: int, columns: int, correction: str, name: str) -> None:
    """Print the extra bytes of one call."""
    LOSSES[name](synthetic(64, 128), correction)()  # what is allocated once per process
    call = LOSSES[name](synthetic(rows, columns), correction)
    before = restart_peak()
    kept = call()
    print(status("VmHWM") - before - sum(tensor.nbytes for tensor in kept))


def synthetic(rows: int, columns: int) -> Problem:
    """Return normalised embeddings; every row leaves out its own column and 16 others, as a masked history does."""
    draw = torch.Generator().manual_seed(0)
    query = functional.normalize(torch.randn(rows, DIMENSION, generator=draw)).requires_grad_()
    items = functional.normalize(torch.randn(columns, DIMENSION, generator=draw)).requires_grad_()
    own, numbers = torch.arange(rows), torch.arange(rows).repeat_interleave(16)
    others = torch.randint(columns, (16 * rows,), generator=draw)
    hits = torch.stack([torch.cat([own, numbers]), torch.cat([own, others])], 1)
    return Problem(query, items, hits, torch.randn(columns, generator=draw).log_softmax(0))


def products(problem: Problem) -> Contender:
    """Return the three matrix products alone."""
    query, items = problem.query.detach(), problem.items.detach()
    logits = torch.empty(len(query), len(items))
    out = [torch.empty_like(query), torch.empty_like(items)]

    def call() -> list[Tensor]:
        torch.mm(query, items.T, out=logits)
        torch.mm(logits, items, out=out[0])
        torch.mm(logits.T, query, out=out[1])
        return out

    return call


def chunked(problem: Problem, correction: str, chunk_rows: int = 256) -> Contender:
    """Return the loss that never holds all logits."""
    query, items, hits, log_q = problem
    options: dict[str, Any] = {"correction": correction, "temperature": TEMPERATURE, "chunk_rows": chunk_rows}
    if correction != "none":
        options |= {"log_q_pos": log_q[: len(query)], "log_q_neg": log_q}

    def call() -> list[Tensor]:
        pos = (query * items[: len(query)]).sum(1) / TEMPERATURE
        losses = sampled_softmax_in_batch(query, items, pos=pos, hits=hits, **options)
        return [losses.detach(), *torch.autograd.grad(losses.mean(), (query, items))]

    return call


def plain(problem: Problem, correction: str) -> Contender:
    """Return the loss that takes all logits and a mask."""
    query, items, hits, log_q = problem
    log_q_pos = log_q[: len(query)]

    def call() -> list[Tensor]:
        pos = (query * items[: len(query)]).sum(1) / TEMPERATURE
        keep = torch.ones(len(query), len(items), dtype=torch.bool)
        keep[hits[:, 0], hits[:, 1]] = False
        densities = {"log_q_pos": log_q_pos, "log_q_neg": log_q}
        if correction == "improved":
            densities["log_q_neg"] = exclude_positive(log_q, log_q_pos)
        neg = query @ items.T / TEMPERATURE
        losses = sampled_softmax(pos, neg, keep=keep, correction=correction, **densities)
        return [losses.detach(), *torch.autograd.grad(losses.mean(), (query, items))]

    return call


LOSSES: dict[str, Callable[[Problem, str], Contender]] = {"chunked": chunked, "plain": plain}


if __name__ == "__main__":
    app()
