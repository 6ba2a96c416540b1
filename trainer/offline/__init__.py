"""Offline evaluation on a closed set of interactions, behind ``weir evaluate`` and ``weir bench losses``.

It trains an `OfflineModel` on one part of the interactions and tests it on the rest. Towers, embeddings, negatives,
losses and the step are shared with the stream; ranking and metrics come from `weir.trainer.ranking`. Splits, epochs
over histories or pairs, test cases, and the comparison of methods with its report are offline only.
"""
