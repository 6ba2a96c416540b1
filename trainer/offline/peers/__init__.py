"""Simple methods that a trained model must beat: popularity, item-kNN and EASE, tuned as the model is.

None of them is trained by steps. `popularity` counts; `item_knn` and `ease` turn the matrix of users and items into one
of items and items, by which `queries` scores the history of a case. `tuning` chooses settings on the validation part,
and `contest` runs all of them on the cases of a test.
"""
