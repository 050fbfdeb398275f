"""Certificates of problems: bounds that hold under rounding, and what they rest on.

In the file of each form, `certificate` is what solvers use on the way, and `certified` decides. Those of a ball are in
`problems/ball.py`. `results/judge.py` says what a primal and a dual value prove.
"""
