"""Select models: cross-validation, folds, a grid of C from the data, gradients of a held-out loss."""
