"""Count over a join tree by sums and products of a semiring."""
