"""Stochastic solvers: Pegasos, SGD in a ball, and the Stochastic Batch Perceptron."""
