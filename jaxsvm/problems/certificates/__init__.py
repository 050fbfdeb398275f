"""What certificates of problems need: better points under rounding, and the test that a matrix is definite.

The certificates are methods in the file of each form (`problems/box.py`): `certificate` is for solvers between steps,
`certified` for the result. `results/judge.py` says what a primal and a dual value prove, and the status.
"""
