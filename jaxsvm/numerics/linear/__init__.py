"""Linear systems: elimination, conjugate gradients, Nystroem preconditioners."""
