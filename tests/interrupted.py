"""A process to be interrupted: `python interrupted.py KIND` runs one kind of long call again and again.

It warms up, so that no compilation is measured, says `ready SECONDS` (how long the call takes), and then, for each line
on stdin, begins the call (`begin`), and says when and how it ended: a line of JSON. Nothing in it knows when the signal
comes. A kind makes the call before its first `yield`; then it judges the answer, in seconds that are not the call's.
"""

import json
import math
import signal
import sys
import time
import warnings

import numpy as np
from oracle_hinge import parabola

import jaxsvm
from jaxsvm import SMO, FrankWolfe, Newton
from jaxsvm.kernels import RBF
from jaxsvm.loop.interruption import Interruption
from jaxsvm.path import coarse_to_fine

N = 200
CS = np.geomspace(1e-2, 1e4, 24)
ENDLESS = FrankWolfe(variant="classic", tol=1e-14, max_steps=2**30)
PAIRS = FrankWolfe(tol=1e-9)


X, Y = parabola(N, 3)
GRAM = jaxsvm.gram(RBF(0.5), X)


def judged(fits, problems, tol, found=()):
    """What must hold of fits: (status, gap) are honest, and what was certified while it ran still is."""
    pairs = list(zip(fits, problems, strict=True))
    codes = [str(fit.status.name) for fit, _ in pairs]
    assert set(codes) <= {"CONVERGED", "INTERRUPTED"}, codes
    for fit, problem in pairs:
        gap, alpha = float(fit.certificate.relative_gap), np.asarray(fit.alpha)
        assert (fit.status.name == "CONVERGED") == (gap <= tol), (codes, gap)
        assert np.isfinite(alpha).all()
        if np.isfinite(gap):
            scratch = problem.certificate(alpha, problem.matvec(alpha)).relative_gap
            assert float(scratch) <= gap * (1 + 1e-6) + 1e-10, (float(scratch), gap)
    for place, before in found:
        assert before.status != jaxsvm.Status.CONVERGED or codes[place] == "CONVERGED", (place, codes)
        if codes[place] == "CONVERGED":
            np.testing.assert_array_equal(pairs[place][0].alpha, before.alpha)
    return codes


def one_fit(solver, make):
    problem = make(GRAM, Y, 1e4)
    seen = []
    fit = jaxsvm.fit(
        problem, solver, callback=lambda fit: seen.append(float(fit.certificate.relative_gap)), max_seconds=4
    )
    yield
    assert float(fit.certificate.relative_gap) <= min(seen, default=np.inf)
    yield judged([fit], [problem], float(solver.tol))


def path(make=jaxsvm.svm_problem, **options):
    found = []
    tol = float(options["solver"].tol) if "solver" in options else options["tol"]
    fits = jaxsvm.solve_path(make(GRAM, Y), CS, callback=lambda *pair: found.append(pair), **options)
    yield
    yield judged(fits, [make(GRAM, Y, C) for C in CS], tol, found)


def refined():
    """Coarse to fine: what its grids found is certified, whatever they were interrupted in."""
    reached, certified = [], coarse_to_fine._certified

    def counted(grids, *rest):
        reached.append(sum(len(grid.points) for grid in grids))
        return certified(grids, *rest)

    coarse_to_fine._certified = counted
    try:
        fits = jaxsvm.solve_path(jaxsvm.svm_problem(GRAM, Y), CS, tol=1e-9)
    finally:
        coarse_to_fine._certified = certified
    yield
    assert np.isfinite(fits.certificate.relative_gap).sum() == reached[0]
    yield judged(fits, [jaxsvm.svm_problem(GRAM, Y, C) for C in CS], 1e-9)


def folds(make):
    result = jaxsvm.cross_validate(make(GRAM, Y), CS, 3, tol=1e-8)
    yield
    ended = np.asarray(result.status.code) != int(jaxsvm.Status.INTERRUPTED)
    reached = np.isfinite(result.certificate.relative_gap) & ended  # what a signal ended is certified, but not scored
    np.testing.assert_array_equal(np.isfinite(result.scores), reached)
    whole = reached[result.counted].all(axis=0)
    np.testing.assert_array_equal(np.isfinite(result.mean), whole)
    assert result.C in result.Cs[whole] if whole.any() else np.isnan(result.C)
    yield [str(name) for name in np.ravel(result.status.name)]


def tuned():
    records, started = [], time.monotonic()

    def callback(record):
        records.append(record)
        return time.monotonic() - started > 4

    half = N // 2
    found = jaxsvm.tune(
        RBF(np.full(3, 0.2)), X, Y, 10.0, folds=[(range(half), range(half, N))], steps=10**5, patience=10**5,
        solver=FrankWolfe(tol=1e-6), callback=callback,
    )  # fmt: skip
    yield
    assert len(found.history) - len(records) in (0, 1)
    assert found.loss == min(record.loss for record in found.history if record.status == jaxsvm.Status.CONVERGED)
    yield [str(found.fit.status.name), found.stopped]


KINDS = {
    "fit": lambda: one_fit(ENDLESS, jaxsvm.svm_problem),
    "hinge fit": lambda: one_fit(SMO(tol=1e-7), jaxsvm.hinge_problem),
    "path": refined,
    "chain": lambda: path(solver=PAIRS),
    "newton chain": lambda: path(solver=Newton(tol=1e-10)),
    "folds": lambda: folds(jaxsvm.svm_problem),
    "hinge folds": lambda: folds(jaxsvm.hinge_problem),
    "tune": tuned,
}


def say(*words):
    print(*words, flush=True)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    warnings.simplefilter("ignore")
    kind = KINDS[sys.argv[1]]
    for _ in range(2):  # the second time nothing is compiled
        started = time.monotonic()
        next(call := kind())
        seconds = time.monotonic() - started
        next(call)
    say("ready", seconds)
    while sys.stdin.readline():
        Interruption.last = -math.inf  # every trial is the first
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            say("begin")
            next(call := kind())
            ended = time.time()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that comes now comes too late
        except KeyboardInterrupt:  # the call had nothing to return
            call, ended = iter([None]), time.time()
        say(json.dumps({"ended": ended, "outcome": next(call)}))


if __name__ == "__main__":
    main()
