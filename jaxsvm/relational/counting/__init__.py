"""Count over a join tree."""
