"""Certificates of problems: bounds that hold under rounding, and the tests that they need.

In the file of each form, `certificate` is for solvers between steps, and `certified` decides. Those of a ball are in
`problems/ball.py`. `results/judge.py` says what a primal and a dual value prove.
"""
