"""SVMs over a database join that is never formed."""

from jaxsvm.relational.gradient import PseudoGradient, far_counts, pseudo_gradient
from jaxsvm.relational.schema import Join

__all__ = ["Join", "PseudoGradient", "far_counts", "pseudo_gradient"]
