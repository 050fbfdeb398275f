"""Derivatives of a solution: the rule, and what each problem contributes to it."""
