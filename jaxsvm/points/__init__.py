"""Points: dense arrays and sparse rows, and the checks of what a caller hands over as such."""
