"""Paths that choose their values, solvers that leave out what they know, and the report of rules."""

import dataclasses

import numpy as np
import oracle_hinge
import pytest
from samples import data, hinge, kernel_matrix, svm

import jaxsvm
from jaxsvm import SMO, FrankWolfe, screening
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("build", "solver"), [(hinge, SMO(tol=1e-8)), (svm, FrankWolfe(tol=1e-8))], ids=["hinge", "squared hinge"]
)
def test_a_screened_solver_ends_at_the_solution(build, solver):
    problem = build()
    plain, without = jaxsvm.fit(problem, solver), jaxsvm.fit(problem, jaxsvm.screened(solver, every=25))
    assert without.status.name == "CONVERGED"
    np.testing.assert_allclose(float(without.certificate.dual), float(plain.certificate.dual), rtol=2e-8)


def test_a_screened_solver_goes_on_with_fewer_samples(monkeypatch):
    monkeypatch.setattr("jaxsvm.numerics.sizes.size_classes", lambda n: (16, 32, n))
    sizes, restrict = [], type(hinge()).restrict

    def counted(problem, samples, *rest, **options):
        sizes.append(len(samples))
        return restrict(problem, samples, *rest, **options)

    monkeypatch.setattr(type(hinge()), "restrict", counted)
    fit = jaxsvm.fit(hinge(C=50.0), jaxsvm.screened(SMO(tol=1e-10), every=25))
    assert fit.status.name == "CONVERGED"
    assert sizes
    assert max(sizes) <= 32


@pytest.mark.thorough
def test_a_screened_solver_keeps_its_polish():
    """Without it: 1,095,250 steps, where the solver itself takes 52,250."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 8))
    y = np.where(x @ rng.normal(size=8) + rng.normal(size=150) > 0, 1.0, -1.0)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, 1e4, bias="none")
    plain = jaxsvm.fit(problem, SMO(tol=1e-7))
    for every in (None, 500):
        solver = jaxsvm.screened(SMO(tol=1e-7), every=every)
        fit = jaxsvm.fit(problem, solver)
        assert fit.status.name == "CONVERGED"
        assert int(fit.steps) <= 1.1 * int(plain.steps)
        assert float(fit.certificate.dual) == pytest.approx(float(plain.certificate.dual), rel=2e-7)


def test_no_screening_with_a_free_bias():
    with pytest.raises(ValueError, match="free bias"):
        jaxsvm.fit(hinge(bias="free"), jaxsvm.screened(SMO()))
    with pytest.raises(ValueError, match="every is 0: an integer from 1"):
        jaxsvm.screened(SMO(), every=0)
