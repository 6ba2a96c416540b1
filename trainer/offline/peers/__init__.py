"""Simple baselines for a trained model: popularity, item-kNN and EASE, tuned on the same validation part.

None of them is trained by steps. `popularity` counts; `item_knn` and `ease` turn the user-item matrix into an item-item
matrix, by which `queries` scores the history of a case. `tuning` chooses settings on the validation part,
and `contest` runs all of them on the test cases.
"""
