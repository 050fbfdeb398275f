"""Points: dense arrays and sparse rows, and the checks of a caller's points."""
