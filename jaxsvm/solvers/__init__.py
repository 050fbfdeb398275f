"""Solvers: one file an algorithm, named after it, in folders by the form of its problems (`contract.py`)."""
