"""Paths that choose their values, and the report of rules."""

import dataclasses

import numpy as np
import oracle_hinge
import pytest
from samples import data, hinge, kernel_matrix, svm

import jaxsvm
from jaxsvm import SMO, screening
from jaxsvm.kernels import Linear
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.measured import MEASURED


def primal(problem, fit, C):
    margins, coef = np.asarray(fit.margins, float), np.asarray(fit.dual_coef, float)
    loss = np.maximum(0, 1 - margins)
    square = coef @ (np.asarray(problem.y, float) * margins)
    return square / 2 + (C * loss.sum() if problem.bounded else C / 2 * loss @ loss)


@pytest.mark.parametrize("build", [hinge, pytest.param(svm, marks=pytest.mark.slow)], ids=["hinge", "squared hinge"])
@pytest.mark.parametrize("epsilon", [0.1, 0.02])
def test_every_C_between_has_an_answer_within_epsilon(build, epsilon):
    problem = build()
    path = screening.epsilon_path(problem, epsilon, 0.01, 100.0)
    assert float(path.lower.min()) <= 0.01
    assert float(path.upper.max()) >= 100.0
    assert (np.asarray(path.lower)[1:] <= np.asarray(path.upper)[:-1] * (1 + 1e-9)).all()
    Cs = np.geomspace(0.01, 100, 25)
    exact = jaxsvm.solve_path(problem, Cs, tol=1e-7)
    for C, dual in zip(Cs, np.asarray(exact.certificate.dual), strict=True):
        assert 1 - dual / primal(problem, path.at(C), C) <= epsilon


@pytest.mark.parametrize("solver", [None, pytest.param(SMO(tol=2e-3), marks=pytest.mark.slow)], ids=["chain", "named"])
def test_the_path_ends_where_no_sample_has_a_loss(solver):
    """Algorithm 1, line 5: what has no loss answers every larger C, whatever C_max is."""
    x, _ = data()
    problem = jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), np.where(x[:, 0] > x[:, 1], 1.0, -1.0), bias="none")
    path, further = (screening.epsilon_path(problem, 0.05, 0.1, C_max, solver=solver) for C_max in (1e6, 1e9))
    last = path.path[len(path) - 1]
    assert np.isinf(float(path.upper[-1])) and np.asarray(last.margins).min() >= 1
    assert all(np.asarray(fit.margins).min() < 1 for fit in list(path.path)[:-1])
    np.testing.assert_array_equal(path.path.Cs, further.path.Cs)
    exact = jaxsvm.fit(problem.at(1e6), tol=1e-6)
    assert 1 - float(exact.certificate.dual) / primal(problem, path.at(1e6), 1e6) <= 0.05


def test_values_that_do_not_reach_each_other_get_one_between(monkeypatch):
    """The point of a larger C is no point of a smaller one: its coefficients are beyond their bounds."""
    few = len(screening.epsilon_path(hinge(), 0.1, 0.01, 10.0))
    monkeypatch.setattr("jaxsvm.path.epsilon.MEASURED", dataclasses.replace(MEASURED, first_jump=30.0))
    path = screening.epsilon_path(hinge(), 0.1, 0.01, 10.0)
    assert few <= len(path) <= 2 * few
    assert (np.diff(path.path.Cs) > 0).all()
    for C, fit in zip(np.asarray(path.path.Cs), path.path, strict=True):
        assert np.asarray(fit.alpha).max() <= C * (1 + 1e-12)
        Q = np.outer(data()[1], data()[1]) * kernel_matrix()
        exact = oracle_hinge.box_solution(Q, np.ones(len(Q)), np.full(len(Q), C))
        assert float(fit.certificate.dual) <= exact.optimum * (1 + 1e-9) <= float(fit.certificate.primal) * (1 + 2e-9)


def test_ctrl_c_keeps_an_epsilon_path_so_far():
    """What the callback saw is certified, and nothing is begun after it; before the first value there is nothing."""
    whole, seen = screening.epsilon_path(hinge(), 0.1, 0.01, 10.0), []

    def callback(C, fit):
        assert fit.alpha.shape == (len(data()[1]),)
        seen.append(C)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.warns(jaxsvm.ConvergenceWarning, match="Ctrl-C ended the path at C = "):
        part = screening.epsilon_path(hinge(), 0.1, 0.01, 10.0, callback=callback)
    assert len(seen) == 3 and seen[0] == 0.01
    assert 2 <= len(part) <= 3 and float(part.upper.max()) < 10
    np.testing.assert_array_equal(part.path.Cs[:2], whole.path.Cs[:2])
    assert float(part.at(float(part.upper.max())).certificate.relative_gap) <= 0.1
    with pytest.raises(jaxsvm.InputError, match="reaches from"):
        part.at(10.0)
    with watching() as stop, pytest.raises(KeyboardInterrupt):
        stop.came = True
        screening.epsilon_path(hinge(), 0.1, 0.01, 10.0)


def test_arguments_of_an_epsilon_path():
    for epsilon, low, high in [(0.0, 1, 2), (1.0, 1, 2), (0.1, 0, 1), (0.1, 2, 1), (0.1, 1, np.inf)]:
        with pytest.raises(ValueError, match=r"epsilon|C_min|C_max"):
            screening.epsilon_path(hinge(), epsilon, low, high)
    path = screening.epsilon_path(hinge(), 0.3, 0.5, 1.0)
    with pytest.raises(ValueError, match="reaches from"):
        path.at(1e6)
