"""Derivatives of a solution: the linear systems that each problem contributes to the rule."""
