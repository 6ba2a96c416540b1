"""Offline evaluation: the second product on the same learner, behind ``weir evaluate`` and ``weir bench losses``.

It trains an `OfflineModel` on one part of a closed set of interactions and tests it on the rest. Towers, embeddings,
negatives, losses and the step are those of the stream; ranking and metrics come from `weir.trainer.ranking`. Its own
are the splits, the epochs over histories or pairs, the evaluator's test cases, and the comparison of methods with its
report.
"""
