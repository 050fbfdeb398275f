"""Stochastic solvers: Pegasos and the Stochastic Batch Perceptron."""
