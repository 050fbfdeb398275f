"""A fit whatever its solver: faults that become a status, limits and interruptions, what is refused."""

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from samples import data, exact, gram, hinge, svm

import jaxsvm
from jaxsvm import FrankWolfe, InputError, Status, polished, sampled
from jaxsvm.kernels import RBF, Precomputed
from jaxsvm.loop import bursts
from jaxsvm.results.fit import Counters, StatusCode, advice, bit_of

# --- failure is data


def test_one_bad_lane_does_not_spoil_the_others():
    Cs = jnp.array([1.0, -1.0, jnp.nan, 4.0, 0.0])
    lanes = jax.jit(jax.vmap(lambda C: jaxsvm.fit(svm(C), FrankWolfe(tol=1e-3))))(Cs)
    assert list(lanes.status.name) == ["CONVERGED", "INFEASIBLE", "INFEASIBLE", "CONVERGED", "INFEASIBLE"]
    single = jaxsvm.fit(svm(4.0), FrankWolfe(tol=1e-3))
    np.testing.assert_allclose(lanes.alpha[3], single.alpha, atol=1e-12)
    with pytest.raises(jaxsvm.ConvergenceError, match="lane 1: INFEASIBLE"):
        jaxsvm.check(lanes)


@pytest.mark.parametrize(
    ("make", "solver"),
    [
        (functools.partial(jaxsvm.svm_problem), FrankWolfe()),
        pytest.param(functools.partial(jaxsvm.hinge_problem, bias="none"), jaxsvm.SMO(), marks=pytest.mark.thorough),
        (functools.partial(jaxsvm.hinge_problem, bias="free"), jaxsvm.SMO()),
        (functools.partial(jaxsvm.slack_problem, bias="free"), jaxsvm.StochasticBatchPerceptron(steps=9, batch=None)),
    ],
)
def test_traced_faults_become_a_status(make, solver):
    y, ones = data()[1], np.ones(60)
    run = jax.jit(lambda y, value, weight: jaxsvm.fit(make(gram(), y, value, sample_weight=weight), solver).status)
    assert run(y, 0.5, ones).name in ("CONVERGED", "MAX_STEPS")
    faults = [(y, value, ones) for value in (-1.0, np.nan, np.inf)]
    faults += [(labels, 0.5, ones) for labels in (ones, 2 * y)]  # one class; no signs
    faults += [(y, 0.5, weight) for weight in (0 * ones, -ones, (y > 0) * 1.0)]  # at the last one class has all of it
    faults += [] if make.func is jaxsvm.slack_problem else [(y, 0.0, ones)]
    assert [run(*fault).name for fault in faults] == ["INFEASIBLE"] * len(faults)


def test_traced_faults_of_a_box_become_a_status():
    x, y = data()
    q, upper, c = np.ones(len(y)), np.ones(len(y)), np.where(y > 0, 1.0, -2.0)

    @jax.jit
    def status(q, upper, y, c, e=0.5):
        return jaxsvm.fit(jaxsvm.box_problem(gram(), q, upper, y=y, c=c, e=e)).status

    def spoilt(values, value):
        return np.where(np.arange(len(y)) == 3, value, values)

    assert status(q, upper, y, c).name == "CONVERGED"
    assert status(q, spoilt(upper, 0.0), y, spoilt(c, 0.0)).name == "CONVERGED"  # 0 is allowed where the bound is 0
    for place, value in ((0, np.nan), (1, -1.0), (1, np.inf), (2, 0.0), (2, 2.0), (3, 0.0), (3, np.inf)):
        arguments = [q, upper, y, c]
        arguments[place] = spoilt(arguments[place], value)
        assert status(*arguments).name == "INFEASIBLE", (place, value)
    assert status(q, upper, y, c, 2.0 * len(y)).name == "INFEASIBLE"  # out of reach


@pytest.mark.parametrize(
    ("make", "solver"),
    [
        (svm, FrankWolfe(variant="away")),
        pytest.param(svm, FrankWolfe(variant="smo"), marks=pytest.mark.thorough),
        (svm, jaxsvm.Newton(tol=1e-8)),
        (functools.partial(hinge, bias="free"), jaxsvm.SMO(tol=1e-6)),
        (hinge, jaxsvm.WorkingSet(tol=1e-3)),
    ],
)
def test_not_finite_and_not_psd(make, solver):
    K = oracle.kernel_matrix("rbf", data()[0], gamma=0.5)
    broken, indefinite = K.copy(), K - 3 * np.eye(len(K))
    broken[7, 9] = np.nan
    fitted = lambda K: jaxsvm.fit(make(1.0).on(jaxsvm.gram(Precomputed(), K)), solver)  # noqa: E731
    traced = jax.jit(fitted)
    assert traced(broken).status.name == "NOT_FINITE"
    with pytest.warns(jaxsvm.ConvergenceWarning, match="NOT_PSD"):
        host = fitted(indefinite)
    for fit in (host, traced(indefinite)):
        assert fit.status.name == "NOT_PSD"
        assert np.isfinite(np.asarray(fit.alpha)).all()


def test_below_the_floor_of_float32_is_stalled_not_converged():
    with pytest.warns(jaxsvm.ConvergenceWarning, match="STALLED"):
        fit = jaxsvm.fit(svm(1e6, dtype="float32"), FrankWolfe(tol=1e-9))
    assert fit.status.name == "STALLED"
    assert float(fit.certificate.relative_gap) > 1e-9
    for other, said in ((fit, True), (dataclasses.replace(fit, margins=np.zeros(3)), False)):
        with pytest.raises(jaxsvm.ConvergenceError, match="scale features where") as refused:
            jaxsvm.check(other)
        assert ("float64 data" in str(refused.value)) == said
    with pytest.raises(jaxsvm.ConvergenceError, match=r"`fit\(problem, FrankWolfe\(max_steps=...\)\)`"):
        jaxsvm.check(dataclasses.replace(fit, status=StatusCode(np.int32(Status.MAX_STEPS))))


@pytest.mark.parametrize(
    ("solver", "named"),
    [
        (lambda: sampled(FrankWolfe(max_steps=20, tol=1e-6)), "sampled(FrankWolfe(max_steps=...))"),
        (lambda: polished(sampled(FrankWolfe(max_steps=20, tol=1e-6))), "polished(sampled(FrankWolfe(max_steps=...)))"),
        (lambda: jaxsvm.StochasticBatchPerceptron(20), "StochasticBatchPerceptron(steps=...)"),
        (lambda: jaxsvm.Pegasos(20), "Pegasos(steps=...)"),
        (lambda: jaxsvm.BallSGD(1.0, 20), "BallSGD(steps=...)"),
        (lambda: jaxsvm.Perceptron(20), "Perceptron(steps=...)"),
        (lambda: jaxsvm.EquivalentHinge(jaxsvm.SMO(), max_steps=20), "EquivalentHinge(SMO(), max_steps=...)"),
    ],
)
def test_advice_names_fields_that_exist(solver, named):
    """Of every configuration that says how to take more steps: it is made as written, but for its numbers."""
    counters = Counters.zero()._replace(solvers=bit_of(solver()))
    text = advice(Status.MAX_STEPS, dataclasses.replace(jaxsvm.fit(svm(), FrankWolfe()), counters=counters))
    assert f"`fit(problem, {named})`" in text
    made = eval(
        named.replace("BallSGD(", "BallSGD(1.0, ").replace("...", "9"),
        {name: getattr(jaxsvm, name) for name in jaxsvm.__all__},
    )  # noqa: S307
    assert int(made.max_steps) == 9


def test_sampled_stop_without_final_check_never_says_converged_falsely():
    solver = sampled(FrankWolfe(variant="away", tol=1e-3, stop="paper"), r=5, tries=1, final_check="none")
    with pytest.warns(jaxsvm.ConvergenceWarning, match="UNCERTIFIED"):
        fit = jaxsvm.fit(svm(100.0), solver)
    assert fit.status.name == "UNCERTIFIED"
    with pytest.raises(jaxsvm.ConvergenceError, match="UNCERTIFIED, relative gap"):
        jaxsvm.check(fit)
    assert float(fit.certificate.dual) <= exact(100.0).optimum <= float(fit.certificate.primal)


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")  # the rule asked for proves no gap
def test_sampled_draws_present_samples_alone():
    """With nineteen absent samples for each of 60 it ends no sooner than for these alone; it stores nothing."""
    x, y = data()
    more = np.random.default_rng(0).normal(size=(19 * len(y), x.shape[1]))
    apart = jaxsvm.gram(RBF(gamma=0.5), np.concatenate([x, more]))
    here = jaxsvm.svm_problem(apart, np.resize(y, apart.n), 2.0, sample_weight=np.arange(apart.n) < len(y))
    solver = sampled(FrankWolfe("away", tol=1e-3, stop="paper"), tries=1, final_check="none")
    fit = jaxsvm.fit(here, solver)
    assert float(fit.certificate.relative_gap) <= 0.02  # for these alone .0078
    assert not solver.stores(here)


# --- drivers


def test_time_limit_callback_and_resume():
    slow = FrankWolfe(variant="classic", tol=1e-10, max_steps=2**30)
    with pytest.warns(jaxsvm.ConvergenceWarning, match="INTERRUPTED"):
        started = time.monotonic()
        fit = jaxsvm.fit(svm(), slow, max_seconds=0.3)
        assert time.monotonic() - started < 30
    assert fit.status.name == "INTERRUPTED"
    seen = []

    def callback(fit):
        seen.append(float(fit.certificate.relative_gap))
        return len(seen) >= 5

    with pytest.warns(jaxsvm.ConvergenceWarning, match="INTERRUPTED"):
        fit = jaxsvm.fit(svm(), slow, callback=callback)
    assert len(seen) == 5
    resumed = jaxsvm.fit(svm(), FrankWolfe(tol=1e-6), init=fit)
    fresh = jaxsvm.fit(svm(), FrankWolfe(tol=1e-6))
    assert resumed.status.name == "CONVERGED"
    assert int(resumed.steps) <= int(fresh.steps) + 250


def test_a_fit_and_a_path_are_shown_in_a_line():
    fit = jaxsvm.fit(svm(), FrankWolfe(tol=1e-4))
    support, steps = len(fit.support), int(fit.steps)
    assert repr(fit).startswith("Fit(CONVERGED, relative gap ") and "optimum in [" in repr(fit)
    assert repr(fit).endswith(f"{support} of 60 samples in the support, {steps} steps)")
    path = jaxsvm.solve_path(svm(), [1.0, 2.0], tol=1e-4)
    assert repr(path).startswith("Path(2 values of C from 1 to 2: 2 CONVERGED, relative gap up to ")
    assert repr(path.fits).startswith("Fit(lanes (2,): 2 CONVERGED, relative gap up to ")
    seen = []
    jax.eval_shape(lambda fit: seen.append(repr(fit)) or fit.R, fit)  # traced: there are no values to show
    assert "alpha=" in seen[0] and "alpha=" in repr(jax.eval_shape(lambda fit: fit, fit))
    assert "alpha=" in repr(jax.tree.map(lambda leaf: None, fit))


def test_check_says_where_it_can_be_called():
    with pytest.raises(InputError, match="outside jit"):
        jax.eval_shape(lambda fit: jaxsvm.check(fit).R, jaxsvm.fit(svm(), FrankWolfe(tol=1e-4)))


def test_statuses_read_on_the_host():
    fit = jaxsvm.fit(svm(), FrankWolfe())
    assert fit.status == Status.CONVERGED
    assert int(fit.status) == Status.CONVERGED
    assert fit.status.name == "CONVERGED"
    assert repr(fit.status) == "Status.CONVERGED"
    assert np.asarray(fit.status).dtype == np.int32


# --- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": -0.1}, "{} is -0.1"),
        ({"value": float("nan")}, "{} is nan"),
        ({"value": float("inf")}, "{} is inf"),
        ({"value": [1.0, 2.0]}, "{} has shape"),
        ({"y": np.ones(60)}, "no sample of class -1"),
        ({"y": np.arange(60)}, "y holds the values"),
        ({"y": (np.ones(60), ("a", "b"))}, "y is a tuple"),
        ({"y": np.ones(59)}, "y has shape"),
        ({"sample_weight": -np.ones(60)}, "negative"),
        ({"sample_weight": np.zeros(60)}, "zero everywhere"),
        ({"sample_weight": np.full(60, np.nan)}, "NaN"),
        ({"sample_weight": np.ones(3)}, "sample_weight has shape"),
        ({"bias": "loose"}, "bias is 'loose'"),
    ],
)
@pytest.mark.parametrize(
    ("make", "name"), [(jaxsvm.svm_problem, "C"), (jaxsvm.hinge_problem, "C"), (jaxsvm.slack_problem, "nu")]
)
def test_bad_problems_are_refused(make, name, change, message):
    arguments = {"y": data()[1], "value": 1.0} | change
    with pytest.raises(jaxsvm.InputError, match=message.format(name)):
        make(gram(), arguments.pop("y"), arguments.pop("value"), **arguments)
    if name == "C":
        with pytest.raises(jaxsvm.InputError, match="C is 0.0"):
            make(gram(), data()[1], 0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FrankWolfe(variant="fast"), "variant"),
        (lambda: sampled(FrankWolfe(), r=0), "r is 0"),
        (lambda: sampled(FrankWolfe(), final_check="half"), "final_check"),
        (lambda: sampled(polished(FrankWolfe())), "order"),
        (lambda: polished(FrankWolfe(), 0), "products"),
        (lambda: polished(jaxsvm.SMO()), "solver is SMO"),
        (lambda: jaxsvm.fit(svm(), FrankWolfe(start="nowhere")), "start"),
        (lambda: jaxsvm.fit(svm(), FrankWolfe(), init=np.ones(3)), "init"),
        (lambda: jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), []), "Cs"),
        (lambda: jaxsvm.fit(svm(bias="free"), FrankWolfe()), "free bias"),
        (lambda: jaxsvm.fit(svm(bias="free"), jaxsvm.CoreVectorMachine()), "free bias"),
        (lambda: jaxsvm.fit(svm(bias="free"), sampled(FrankWolfe())), "free bias"),
        (lambda: jaxsvm.fit(svm(bias="free"), jaxsvm.WorkingSet()), "free bias"),  # without a lid
        (lambda: jaxsvm.fit(hinge(bias="free"), jaxsvm.SDCA()), "free bias"),
        (lambda: jaxsvm.fit(hinge(bias="free"), jaxsvm.Perceptron(5)), "free bias"),
        (lambda: jaxsvm.fit(hinge(bias="free"), jaxsvm.SMO(variables=1)), "variables is 1"),
        (lambda: jaxsvm.SMO(variables=3), "variables is 3"),
        (lambda: jaxsvm.SDCA(order="sorted"), "order"),
        (lambda: jaxsvm.Perceptron(5, order="sorted"), "order"),
        (lambda: jaxsvm.Perceptron(5, output="best"), "output"),
        (lambda: jaxsvm.StochasticBatchPerceptron(batch=0), "batch is 0"),
        (lambda: jaxsvm.StochasticBatchPerceptron(average="median"), "average is 'median'"),
        (lambda: jaxsvm.Newton(method="fast"), "method"),
        (lambda: jaxsvm.Newton(factor_limit=0), "factor_limit"),
        (lambda: jaxsvm.WorkingSet(size=2), "size is 2"),
        (lambda: jaxsvm.WorkingSet(fresh=1), "fresh is 1"),
        (lambda: jaxsvm.WorkingSet(size=8, fresh=9), "fresh is 9"),
        (lambda: jaxsvm.WorkingSet(size=16, fresh=8, cache=10), "cache is 10: .* size = 16"),
    ],
)
def test_bad_configurations_are_refused(make, message):
    with pytest.raises(jaxsvm.InputError, match=message):
        make()


def test_where_nothing_was_proved_the_widest_column_is_named_first():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32) * np.float32([1, 1e12, 1])
    y = np.where(np.arange(40) % 2 == 0, 1, -1)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(jaxsvm.kernels.Polynomial(3), x), y, 1.0)
    with pytest.warns(jaxsvm.ConvergenceWarning, match=r"Scale the columns first: column 1 spans .*e\+12"):
        fit = jaxsvm.fit(problem, jaxsvm.SMO(max_steps=100))
    assert not fit.certificate.relative_gap < 1


@pytest.mark.thorough
def test_a_fit_that_proves_nothing_ends_long_before_its_cap():
    """Of 10 million steps: pair steps on a column of 1e8 gain nothing. A solver that never stalls takes all it may."""
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32) * np.float32([1, 1e8, 1])
    problem = jaxsvm.hinge_problem(
        jaxsvm.gram(jaxsvm.kernels.Linear(), x), [1, -1, -1, 1, 1, -1, 1, -1], 1.0, bias="free"
    )
    with pytest.warns(jaxsvm.ConvergenceWarning, match=r"STALLED.*Scale the columns first: column 1"):
        fit = jaxsvm.fit(problem)
    assert fit.steps < 300_000
    progress = bursts.begun(problem, jaxsvm.SMO(), jax.random.key(0), None, None, False)
    progress = progress._replace(
        state=progress.state._replace(counters=progress.state.counters._replace(steps=np.int32(400_000)))
    )
    ended, _ = bursts._ended_if_hopeless(problem, jaxsvm.SMO(), progress, (200_000, np.inf))
    assert int(ended.status) == jaxsvm.Status.STALLED
    for solver, mark in ((jaxsvm.SMO(), (300_000, np.inf)), (jaxsvm.Pegasos(steps=1_000_000), (200_000, np.inf))):
        assert bursts._ended_if_hopeless(problem, solver, progress, mark) == (progress, mark)
    near = progress._replace(best=progress.best._replace(certificate=jaxsvm.Certificate(1.0, 0.5, np.float32(2.0))))
    ended, mark = bursts._ended_if_hopeless(problem, jaxsvm.SMO(), near, (200_000, 4e3))  # the rest takes 260,000 more
    assert int(ended.status) == jaxsvm.Status.RUNNING and mark == (400_000, 2.0)
    near = progress._replace(best=progress.best._replace(certificate=jaxsvm.Certificate(1.0, 0.5, np.float32(0.5))))
    ended, _ = bursts._ended_if_hopeless(problem, jaxsvm.SMO(max_steps=1_000_000), near, (200_000, 1.0))
    assert int(ended.status) == jaxsvm.Status.MAX_STEPS  # a rate of 1 / steps, of Frank-Wolfe's: not of rounding


def test_a_cost_that_is_flushed_to_zero_is_refused_and_no_path_returns_nan():
    x, y = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), np.array([1, -1] * 4)
    weight = np.linspace(2, 4, 8, dtype=np.float32)
    with pytest.raises(jaxsvm.InputError, match="C is 1e-38"):  # its product with each weight is a normal number
        jaxsvm.hinge_problem(jaxsvm.gram(jaxsvm.kernels.Linear(), x), y, 1e-38, sample_weight=weight)
    wide = x * np.float32([1, 1e27, 1])
    problem = jaxsvm.hinge_problem(jaxsvm.gram(jaxsvm.kernels.Linear(), wide), y, 1.0, bias="free")
    with pytest.warns(jaxsvm.ConvergenceWarning):
        fits = jaxsvm.solve_path(problem, [0.1, 1.0]).fits
    assert np.isfinite(fits.alpha).all() and np.isfinite(fits.bias).all()
