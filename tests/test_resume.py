"""Going on from a fit: in pieces it converges as soon as in one run."""

import dataclasses
import functools
import warnings

import jax
import numpy as np
import pytest

import jaxsvm
from jaxsvm import FrankWolfe, Status
from jaxsvm.kernels import Polynomial

N = 60


@functools.cache
def hard():
    """A polynomial kernel at a large C: pair steps crawl, and a polish ends it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 6))
    y = np.where(x[:, 0] + x[:, 1] ** 2 > 0.7, 1.0, -1.0)
    y = np.where(rng.random(N) < 0.1, -y, y)
    return jaxsvm.svm_problem(jaxsvm.gram(Polynomial(2, 0.3), x), y, 1e4)


@pytest.fixture(autouse=True)
def quietly():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jaxsvm.ConvergenceWarning)
        yield


SOLVER = FrankWolfe(tol=1e-8)


@pytest.mark.parametrize("piece", [100, 250, 700])
@pytest.mark.parametrize("end", ["steps", "callback"])
def test_pieces_take_as_many_steps_as_one_run(piece, end):
    whole = jaxsvm.check(jaxsvm.fit(hard(), SOLVER))
    assert int(whole.steps) >= SOLVER.polish_interval(hard()) > piece  # there is a polish to be earned
    fit, steps = None, 0
    solver = dataclasses.replace(SOLVER, max_steps=piece) if end == "steps" else SOLVER
    options = {} if end == "steps" else {"callback": lambda fit: int(fit.steps) >= piece}
    for _ in range(100):
        fit = jaxsvm.fit(hard(), solver, init=fit, **options)
        steps += int(fit.steps)
        if fit.status.name not in ("MAX_STEPS", "INTERRUPTED"):
            break
    assert fit.status.name == "CONVERGED"
    assert steps <= int(whole.steps) + 2 * max(piece, SOLVER.check_every)


def test_pieces_under_tracing():
    """The compiled driver carries what was earned as well."""
    solver = dataclasses.replace(SOLVER, max_steps=700)
    run = jax.jit(lambda init: jaxsvm.fit(hard(), solver, init=init))
    fit, taken = jaxsvm.fit(hard(), solver), 1
    while fit.status == Status.MAX_STEPS and taken < 10:
        fit, taken = run(fit), taken + 1
    assert fit.status.name == "CONVERGED"
    assert taken <= 4


def test_a_fit_that_ended_has_nothing_to_its_credit():
    """Another C starts from a converged fit: its polish is earned by its own steps."""
    solver = dataclasses.replace(SOLVER, tol=1e-1)
    ended = jaxsvm.fit(hard(), solver)
    assert ended.status.name == "CONVERGED"
    full = dataclasses.replace(ended, counters=ended.counters._replace(unpolished=np.int32(10**6)))
    assert int(jaxsvm.fit(hard(), SOLVER, init=full).steps) == int(jaxsvm.fit(hard(), SOLVER, init=ended).steps)
