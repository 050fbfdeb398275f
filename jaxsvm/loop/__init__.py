"""Solve a problem: choose a solver, run it in rounds until its stop rule holds, certify what comes of it."""
