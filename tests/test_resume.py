"""Going on from a fit: in pieces it converges as soon as in one run."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from oracle_hinge import parabola

import jaxsvm
from jaxsvm import FrankWolfe, Status
from jaxsvm.kernels import RBF, Linear, Polynomial

pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
N = 60


@functools.cache
def hard():
    x, y = parabola(N, 6)
    return jaxsvm.svm_problem(jaxsvm.gram(Polynomial(2, 0.3), x), y, 1e4)


SOLVER = FrankWolfe(tol=1e-8)


@pytest.mark.parametrize("piece", [100, 250, 700])
@pytest.mark.parametrize("end", ["steps", "callback"])
def test_pieces_take_as_many_steps_as_one_run(piece, end):
    whole = jaxsvm.check(jaxsvm.fit(hard(), SOLVER))
    assert int(whole.steps) >= SOLVER.finisher(hard()).after > piece  # there is a polish to be earned
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


@pytest.mark.parametrize("burst", [1, 1000])
def test_steps_say_when_a_finisher_comes(burst, monkeypatch):
    """Not the seconds of a burst: a fit is the same on a slow machine, and with a callback."""
    seen = jaxsvm.fit(hard(), SOLVER, callback=lambda fit: None)
    assert len(seen.solvers) == 2
    monkeypatch.setattr("jaxsvm.loop.bursts.next_burst", lambda *_: burst)
    fit = jaxsvm.fit(hard(), dataclasses.replace(SOLVER, refresh_every=4000))
    assert int(fit.steps) == int(seen.steps)
    np.testing.assert_array_equal(fit.alpha, seen.alpha)


def test_a_finisher_that_the_cap_would_cut_is_not_begun():
    """It would prove nothing, in this piece or in any other, and the steps that earned it would be forgotten."""
    whole, after = jaxsvm.fit(hard(), SOLVER), SOLVER.finisher(hard()).after
    first = jaxsvm.fit(hard(), dataclasses.replace(SOLVER, max_steps=after + 5))
    assert (first.solvers, int(first.counters.alone)) == (("FrankWolfe",), after + 5)
    second = jaxsvm.fit(hard(), dataclasses.replace(SOLVER, max_steps=after + 5), init=first)
    assert second.status.name == "CONVERGED"
    assert int(first.steps) + int(second.steps) <= int(whole.steps) + SOLVER.check_every


@pytest.mark.parametrize("C", [3e7, 1e8, 1e9, 1e10])
def test_a_finisher_that_came_back_takes_twice_the_steps(C):
    """Newton needs more than 30 steps here, from wherever pair steps stand: it began again and again with 30."""
    x, y = parabola(100, wrong=0.1)
    fit = jaxsvm.check(jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(RBF(0.5), x), y, C)))
    exact = jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(RBF(0.5), x), y, C), jaxsvm.Newton(tol=1e-10))
    rounding = C * np.finfo(float).eps  # of kernel values, relative to an optimum that the ridge 1 / C alone holds up
    np.testing.assert_allclose(fit.certificate.primal, exact.certificate.dual, rtol=max(1e-9, rounding))


def test_the_cap_holds_for_a_search_that_goes_on_with_another_solver():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    y = np.where(x[:, 0] + 0.8 * rng.normal(size=N) > 0, 1.0, -1.0)
    problem = jaxsvm.slack_problem(jaxsvm.gram(Linear(), x), y, 0.02)
    solver = jaxsvm.EquivalentHinge(jaxsvm.SMO(), tol=1e-14)
    after = solver.finisher(problem).after
    fit = jaxsvm.fit(problem, dataclasses.replace(solver, max_steps=after + 3))
    assert (fit.status.name, int(fit.steps)) == ("MAX_STEPS", after + 3)
    assert "InteriorPoint" in fit.solvers


def test_pieces_under_tracing():
    """A compiled fit does not polish, but it carries what its steps earn for the next fit on the host."""
    solver = dataclasses.replace(SOLVER, max_steps=700)
    run = jax.jit(lambda init: jaxsvm.fit(hard(), solver, init=init))
    fit, taken = run(jaxsvm.fit(hard(), solver)), 2
    assert fit.status.name == "MAX_STEPS"
    while fit.status == Status.MAX_STEPS and taken < 10:
        fit, taken = jaxsvm.fit(hard(), solver, init=fit), taken + 1
    assert fit.status.name == "CONVERGED"
    assert taken <= 4


def test_a_fit_that_ended_has_nothing_to_its_credit():
    """Another C starts from a converged fit: its polish is earned by its own steps."""
    solver = dataclasses.replace(SOLVER, tol=1e-1)
    ended = jaxsvm.fit(hard(), solver)
    assert ended.status.name == "CONVERGED"
    full = dataclasses.replace(ended, counters=ended.counters._replace(alone=np.int32(10**6)))
    assert int(jaxsvm.fit(hard(), SOLVER, init=full).steps) == int(jaxsvm.fit(hard(), SOLVER, init=ended).steps)


def samples(n=60):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 3))
    return jaxsvm.gram(RBF(0.5), x), np.where(x[:, 0] + 0.5 * rng.normal(size=n) > 0, 1.0, -1.0)


STOCHASTIC = {
    "sbp": (jaxsvm.StochasticBatchPerceptron(steps=400, batch=4, tol=1e-9, check_every=50), 0.1),
    "pegasos": (jaxsvm.Pegasos(steps=400, batch=4, tol=1e-9, check_every=50), None),
    "pegasos, the paper's steps": (jaxsvm.Pegasos(steps=400, batch=4, tol=1e-9, check_every=50, offset=0.0), None),
    "ball sgd": (jaxsvm.BallSGD(3.0, steps=400, batch=4, tol=1e-9, check_every=50), None),
    "perceptron": (jaxsvm.Perceptron(steps=400, check_every=50), None),
    "sdca": (jaxsvm.SDCA(max_steps=400, tol=1e-12, check_every=50), None),
}
each = pytest.mark.parametrize("name", STOCHASTIC)


def posed(name):
    gram, y = samples()
    solver, nu = STOCHASTIC[name]
    return solver, jaxsvm.hinge_problem(gram, y, 1.0) if nu is None else jaxsvm.slack_problem(gram, y, nu)


def with_steps(solver, steps):
    return dataclasses.replace(solver, **{"steps" if hasattr(solver, "steps") else "max_steps": steps})


@pytest.mark.thorough
@each
def test_no_answer_is_worse_than_the_start(name):
    """The start is certified first, whoever found it; nor is it left by the huge steps of a fresh run."""
    solver, problem = posed(name)
    exact = jaxsvm.fit(problem, tol=1e-6)
    gap = float(exact.certificate.relative_gap)
    for steps in (0, 50):
        fit = jaxsvm.fit(problem, with_steps(solver, steps), init=exact)
        assert float(fit.certificate.relative_gap) <= gap * (1 + 1e-6) + 1e-8  # perceptrons search the length of w


@each
def test_pieces_come_about_as_far_as_one_run(name):
    solver, problem = posed(name)
    fit, gaps = None, []
    for _ in range(4):
        fit = jaxsvm.fit(problem, with_steps(solver, 100), init=fit)
        gaps.append(float(fit.certificate.relative_gap))
    assert (np.diff(gaps) <= 1e-12).all()
    whole = float(jaxsvm.fit(problem, solver).certificate.relative_gap)
    assert gaps[-1] <= max(4 * whole, 1e-9)


@each
def test_a_callback_sees_the_best_certified_fit_of_every_chunk(name):
    """And changes nothing but that: the answer is no worse, after as many steps."""
    solver, problem = posed(name)
    seen = []
    fit = jaxsvm.fit(problem, solver, callback=seen.append)
    assert [int(one.steps) for one in seen] == list(range(50, 401, 50))
    gaps = [float(one.certificate.relative_gap) for one in seen]
    assert all(np.isfinite(np.asarray(one.certificate.primal)) and np.asarray(one.dual_coef).any() for one in seen)
    assert (np.asarray(gaps[1:]) <= np.asarray(gaps[:-1])).all()
    assert float(fit.certificate.relative_gap) <= float(jaxsvm.fit(problem, solver).certificate.relative_gap)
    stopped = jaxsvm.fit(problem, solver, callback=lambda fit: int(fit.steps) >= 100)
    assert stopped.status.name == "INTERRUPTED"
    assert float(stopped.certificate.relative_gap) == gaps[1]


def test_starts_are_taken_or_refused_by_name():
    """Lists are; text, objects and NaN are not; of what has nothing positive every solver starts anew."""
    gram, y = samples()
    problem = jaxsvm.svm_problem(gram, y, 1.0)
    for init in ([1.0] * N, np.zeros(N), -np.ones(N)):
        for solver in (jaxsvm.WorkingSet(), FrankWolfe()):
            assert jaxsvm.fit(problem, solver, init=init).status.name == "CONVERGED"
    for init in ("start", [None] * N, {}, np.full(N, np.nan), [1.0]):
        with pytest.raises(jaxsvm.InputError, match="init"):
            jaxsvm.fit(problem, init=init)
