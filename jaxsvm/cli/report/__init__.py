"""Everything that the command shows: progress bars, solutions, text and pages."""
