"""Baselines of the papers: perceptrons and stochastic descent in a ball."""
