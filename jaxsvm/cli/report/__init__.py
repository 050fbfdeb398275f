"""What the command shows: progress, answers, text and pages."""
