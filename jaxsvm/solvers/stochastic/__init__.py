"""Stochastic solvers: Pegasos, SGD in a ball, the Perceptron and the Stochastic Batch Perceptron."""
