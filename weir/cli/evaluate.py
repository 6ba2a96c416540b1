"""``weir evaluate``: what the configured trainer reaches on held-out interactions."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import time

from weir.cli.effort import Effort
from weir.cli.logs import set_up_logging
from weir.cli.offline import ExperimentOptions, SplitKind
from weir.cli.options import JsonOutput
from weir.text import plain

__all__ = ["evaluate"]


def evaluate(*, options: ExperimentOptions, effort: Effort, json: JsonOutput = False) -> None:
    """Train on one part of a log and test on the rest, next to simple methods, and say which is better.

    A part between the two says when to stop: the best step is kept. On the same part popularity, item-kNN and EASE are
    tuned. Prints recall, NDCG, precision (with 95 % intervals over users) and coverage, recall for popular and rare
    items, and by how much the model is above each simple method. docs/evaluation.md says what each split leaks. A
    store is read only.
    """
    started = time.monotonic()
    session = options.open()
    set_up_logging(session.notes)
    from weir.cli.outcome import judge, next_steps, peers_in_words, print_facts, print_tables, verdict_of, written
    from weir.trainer.offline.data import TooFewError
    from weir.trainer.offline.judge import Outcome
    from weir.verdict import SMALL_LOG, too_small

    interactions, sampled = effort.read(session, options)
    outcome: Outcome | None = None
    small = too_small(len(interactions)) if len(interactions) < SMALL_LOG else ""
    try:
        plan, left_out = effort.plan(session, options, interactions, started)
        sampled += left_out
        print_facts(session, plan, sampled)
        outcome = judge(session, plan, effort)
        verdict = "; ".join(filter(None, (small, verdict_of(outcome))))
    except TooFewError as error:
        if not small or options.split is SplitKind.LABELLED:
            raise
        verdict = f"{small}; {error}"
    if json:
        session.print_json(written(outcome, sampled, verdict))
        return
    if outcome is not None:
        print_tables(session, outcome)
    peers = peers_in_words(outcome) if outcome is not None else []
    for line in (*peers, verdict, *(next_steps(options) if effort.quick else ())):
        session.out.print(plain(line), soft_wrap=True)
