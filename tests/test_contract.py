"""One suite for all solvers and one for all problems: each joins by a line of `SOLVERS` or of `PROBLEMS`.

What is particular to one of them, to faults or to paths is in the test file of that thing.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import oracle_hinge
import pytest
from samples import N, data, gram, kernel_matrix
from test_path import compilations

import jaxsvm
from jaxsvm import (
    SDCA,
    SMO,
    BallSGD,
    CoreVectorMachine,
    EquivalentHinge,
    FrankWolfe,
    InteriorPoint,
    Newton,
    Pegasos,
    Perceptron,
    WorkingSet,
    implicit,
    polished,
    sampled,
)
from jaxsvm import StochasticBatchPerceptron as SBP
from jaxsvm.kernels import RBF
from jaxsvm.loop.driver import fit_compiled

pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")


class Kind(NamedTuple):
    """A problem, and what is known of it."""

    make: Callable[..., Any]  # `(gram, y, value, sample_weight=)` to a problem, values around 1 being ordinary
    # `(K, y, value, weight)` to the optimal value, by NumPy alone; in the scale of the certificate
    optimum: Callable[..., float]
    solver: Any  # what solves it, to `gap`
    gap: float = 1e-9  # the relative gap
    unit: float = 1.0  # its parameter at the value 1
    rows: int = 1  # rows of its points: 2 where w is not made of the dual variables
    signed: bool = False  # whether dual variables may be negative
    slow: bool = False  # whether it is a rarer combination
    # values from which `at` has to make it; fewer where its parameter has a range
    values: tuple[float, ...] = (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6)


def _hinge(bias):
    return (
        functools.partial(jaxsvm.hinge_problem, bias=bias),
        lambda K, y, C, weight: oracle_hinge.hinge_solution(K, y, C, bias, weight).primal,
        SMO(tol=1e-9),
    )


def _free_optimum(K, y, C, weight):
    present = weight > 0
    Q = oracle_hinge.signed(K, y) + np.diag(1 / (C * np.where(present, weight, 1)))
    return oracle_hinge.box_solution(Q, np.ones(N), 100 * C * present, y).primal


_draws = np.random.default_rng(7)
BOX = {"q": _draws.uniform(0.2, 1, N), "upper": _draws.uniform(0.5, 1.5, N), "c": _draws.uniform(0.5, 1.5, N)}


def _box(gram, y, value, sample_weight=None):
    upper = value * BOX["upper"] * (1.0 if sample_weight is None else sample_weight)
    return jaxsvm.box_problem(gram, BOX["q"], upper, y=y, c=y * BOX["c"])


def _box_optimum(K, y, value, weight):
    upper = value * BOX["upper"] * weight
    return oracle_hinge.box_solution(oracle_hinge.signed(K, y), BOX["q"], upper, y * BOX["c"]).primal


def _slack(gram, y, value, **options):
    return jaxsvm.slack_problem(gram, y, 0.05 * value, bias="none", **options)


def _ball(gram, y, value, sample_weight=None):
    del y, value
    return jaxsvm.meb_problem(gram, sample_weight=sample_weight)


PROBLEMS = {
    "svm": Kind(
        jaxsvm.svm_problem,
        lambda K, y, C, weight: oracle.solve_svm(K, y, C, weight).optimum,
        FrankWolfe(tol=1e-9),
    ),
    "svm, free bias": Kind(functools.partial(jaxsvm.svm_problem, bias="free"), _free_optimum, Newton(tol=1e-9)),
    "hinge": Kind(*_hinge("none")),
    "hinge, regularized bias": Kind(*_hinge("regularized"), slow=True),
    "hinge, free bias": Kind(*_hinge("free")),
    "box": Kind(_box, _box_optimum, SMO(tol=1e-9), unit=0.5),  # made at the value 2, which is its C of 1
    "slack": Kind(
        _slack,
        lambda K, y, value, weight: oracle_hinge.slack_solution(K, y, 0.05 * value, "none", weight).level,
        SBP(steps=40_000, batch=None, average="linear", tol=1e-4),
        gap=1e-4,
        unit=0.05,
        rows=2,
    ),
    "ball": Kind(
        _ball,
        lambda K, y, value, weight: oracle_hinge.solve_meb(K[np.ix_(weight > 0, weight > 0)])[1],
        FrankWolfe(tol=1e-9),
    ),
}


class Case(NamedTuple):
    """A solver, and what the suite has to know of it."""

    solver: Any  # A configuration that takes a moment
    problem: str  # which of `PROBLEMS` it is tried on
    # A relative gap that it certainly reaches; None: it takes its steps and ends wherever it is then
    exact: float | None = None
    # how many steps drivers may differ by, since some steps amplify rounding; None: as many as they like, so long as
    # both are within the gap
    apart: int | None = 0
    random: bool = False  # whether it draws
    slow: bool = False  # whether it is a rarer one, or made of others that are in the list: each compiles all anew
    weights: bool = False  # whether the default suite tries it with weights, which compile all anew
    lanes: bool = True  # whether the default suite compiles it into a user's `jit` and `vmap`, which take seconds each


SOLVERS = {
    "classic": Case(
        FrankWolfe(variant="classic", tol=5e-2, max_steps=30_000), "svm", 5e-2, 250, random=True, lanes=False
    ),
    "away": Case(FrankWolfe(variant="away", tol=1e-3), "svm", 1e-3, 250, random=True, slow=True),
    "pairwise": Case(FrankWolfe(variant="pairwise", tol=1e-3), "svm", 1e-3, 250, random=True, slow=True),
    "pairs": Case(FrankWolfe(variant="smo", tol=1e-3), "svm", 1e-7, 250, random=True, weights=True),
    "core vectors": Case(CoreVectorMachine(tol=1e-3), "svm", 1e-7, None, random=True, weights=True),
    "newton": Case(Newton(tol=1e-6), "svm", 1e-10, None),
    "sampled away": Case(sampled(FrankWolfe(variant="away", tol=1e-2)), "svm", 1e-2, None, random=True, slow=True),
    "sampled pairs": Case(sampled(FrankWolfe(variant="smo", tol=1e-2)), "svm", 1e-4, None, random=True, slow=True),
    "sampled core vectors": Case(sampled(CoreVectorMachine(tol=1e-2)), "svm", 1e-2, None, random=True, slow=True),
    "polished classic": Case(
        polished(FrankWolfe(variant="classic", tol=1e-3)), "svm", 1e-3, None, random=True, slow=True
    ),
    "polished core vectors": Case(polished(CoreVectorMachine(tol=1e-3)), "svm", 1e-3, None, random=True, slow=True),
    "polished sampled away": Case(
        polished(sampled(FrankWolfe(variant="away", tol=1e-2))), "svm", 1e-2, None, random=True, slow=True
    ),
    "newton, free bias": Case(Newton(tol=1e-6), "svm, free bias", 1e-10, None, slow=True),
    "ball by pairs": Case(FrankWolfe(variant="smo", tol=1e-3), "ball", 1e-7, 250, random=True, slow=True),
    "ball by core vectors": Case(CoreVectorMachine(tol=1e-3), "ball", 1e-3, None, random=True, slow=True),
    "smo": Case(SMO(tol=1e-6), "hinge", 1e-8, weights=True),
    "smo, single": Case(SMO(tol=1e-4, variables=1), "hinge", 1e-6, slow=True),
    "smo, free bias": Case(SMO(tol=1e-6), "hinge, free bias", 1e-8, slow=True),
    "smo of a box": Case(SMO(tol=1e-6), "box", 1e-8, slow=True),
    "working set": Case(WorkingSet(tol=1e-6, size=16, fresh=8), "hinge, free bias", 1e-8, 25, weights=True),
    "working set, no bias": Case(WorkingSet(tol=1e-6, size=16, fresh=8), "hinge", 1e-8, 25, slow=True),
    "working set of a box": Case(WorkingSet(tol=1e-6, size=16, fresh=8), "box", 1e-8, 25, slow=True),
    "working set, squared": Case(WorkingSet(tol=1e-6, size=16, fresh=8), "svm", 1e-10, 25, weights=True, lanes=False),
    "interior point": Case(InteriorPoint(tol=1e-8), "hinge", 1e-8),
    "sdca": Case(SDCA(tol=1e-4), "hinge", 1e-6, random=True, weights=True),
    "sdca, random": Case(SDCA(order="random", tol=1e-4), "hinge", 1e-6, random=True, slow=True),
    "perceptron": Case(Perceptron(5 * N, output="average"), "hinge", random=True),
    "pegasos": Case(Pegasos(steps=400, batch=4, tol=1e-6), "hinge", random=True, weights=True),
    "ball sgd": Case(BallSGD(5.0, steps=400, batch=4, tol=1e-6), "hinge", random=True, slow=True),
    "equivalent hinge": Case(EquivalentHinge(SMO()), "slack", weights=True),
    "sbp": Case(SBP(steps=400, batch=8, tol=1e-6), "slack", random=True, weights=True),
    "sbp, exact": Case(SBP(steps=300, batch=None, tol=1e-6), "slack", slow=True),
}


def each(cases, rare=lambda case: case.slow):
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.slow) if rare(cases[name]) else name for name in cases]
    )


every_solver, every_problem = each(SOLVERS), each(PROBLEMS)


def problem(kind, value=2.0, dtype="float64", gamma=0.5, **options):
    return PROBLEMS[kind].make(gram(dtype, gamma), data()[1], value, **options)


@functools.cache
def optimum(kind, value=2.0, weighted=False):
    return PROBLEMS[kind].optimum(kernel_matrix(), data()[1], value, WEIGHT if weighted else np.ones(N))


WEIGHT = np.random.default_rng(1).permutation(np.repeat([0.0, 1.0, 2.0], N // 3))
"""Their sum is N: duplicates are as many samples as there are, and need no program of their own."""


def with_(solver, **changes):
    names = {field.name for field in dataclasses.fields(solver)}
    if "solver" in names and "tol" not in names:
        return dataclasses.replace(solver, solver=with_(solver.solver, **changes))
    if "max_steps" in changes and "max_steps" not in names:
        changes["steps"] = changes.pop("max_steps")
    return dataclasses.replace(solver, **changes)


def assert_brackets(certificate, optimum, slack=1e-9):
    slack = slack * abs(optimum)
    assert float(certificate.dual) <= optimum + slack
    assert float(certificate.primal) >= optimum - slack


# --- solvers


@every_solver
def test_its_certificate_brackets_the_optimum(name):
    case = SOLVERS[name]
    fit = jaxsvm.fit(problem(case.problem), case.solver)
    primal, dual, gap = map(float, fit.certificate)
    assert_brackets(fit.certificate, optimum(case.problem))
    assert (fit.status.name == "CONVERGED") == (gap <= case.solver.tol)
    assert gap == pytest.approx((primal - dual) / abs(dual), rel=1e-6, abs=1e-12)
    feasible = problem(case.problem).feasible_point(fit.alpha)
    np.testing.assert_allclose(fit.alpha, feasible, atol=1e-12)
    assert PROBLEMS[case.problem].signed or fit.alpha.min() >= 0
    assert fit.kernel_evaluations > 0
    if case.exact is not None:
        assert fit.status.name == "CONVERGED"


@functools.cache
def in_jit(name):
    """A compiled function of the user's, for all tests of a case, and a list that grows as it is traced."""
    traced = []

    @jax.jit
    def solve(here, key, solver):
        traced.append(name)
        return fit_compiled(here, solver, key)

    return solve, traced


@each(SOLVERS, rare=lambda case: case.slow or not case.lanes)
def test_jit_and_vmap_give_the_answers_of_the_host(name):
    """All drivers take the same steps with the same key, up to rounding, which some amplify."""
    case, keys, values = SOLVERS[name], jax.random.split(jax.random.key(3), 3), jnp.array([0.5, 2.0, 2.0])

    @jax.jit
    @jax.vmap
    def lanes(value, key):
        return jaxsvm.fit(problem(case.problem, value), case.solver, key=key)

    several = lanes(values, keys)
    chex.assert_shape(several.alpha, (3, N))
    single = in_jit(name)[0](problem(case.problem), keys[1], case.solver)
    host = jaxsvm.fit(problem(case.problem), case.solver, key=keys[1])
    for other in (single, jax.tree.map(lambda leaf: leaf[1], several)):
        assert host.status.name == other.status.name
        assert float(host.certificate.primal) == pytest.approx(
            float(other.certificate.primal), rel=1e-7 if case.apart == 0 else case.solver.tol
        )
        if case.apart is not None:
            assert abs(int(host.steps) - int(other.steps)) <= case.apart
            np.testing.assert_allclose(host.alpha, other.alpha, rtol=1e-6, atol=5e-3 if case.apart else 1e-8)
        if case.apart == 0:
            np.testing.assert_allclose(host.dual_coef, other.dual_coef, rtol=1e-6, atol=1e-8)
    same = bool((several.alpha[1] == several.alpha[2]).all())  # which differ in the key alone
    assert same or case.random
    assert not (same and case.random and case.exact is None)


JUDGED = ("pairs", "core vectors", "newton", "smo", "sdca", "interior point", "sbp")
"""Their certificates in float32 have a stricter judge in `test_adversarial.py`."""


@pytest.mark.thorough
@each({name: case._replace(slow=case.slow or name in JUDGED) for name, case in SOLVERS.items()})
def test_float32_stays_float32(name):
    case = SOLVERS[name]
    fit = jaxsvm.fit(problem(case.problem, dtype="float32"), case.solver)
    chex.assert_type([fit.alpha, fit.dual_coef, fit.bias, fit.margins, fit.certificate.relative_gap], jnp.float32)
    assert_brackets(fit.certificate, optimum(case.problem), 1e-6)
    assert (fit.status.name == "CONVERGED") == (float(fit.certificate.relative_gap) <= case.solver.tol)
    if case.exact is not None:
        assert fit.status.name == "CONVERGED"


@every_solver
def test_steps_compose_in_a_users_scan(name):
    """`init`, `step`, `refresh` and `dual_point` are usable by themselves."""
    case, here = SOLVERS[name], problem(SOLVERS[name].problem)

    @jax.jit
    def run(key):
        start = case.solver.init(here, key)
        state, R = jax.lax.scan(
            lambda state, _: ((after := case.solver.step(here, state)), after.R), start, None, length=300
        )
        point, s = case.solver.dual_point(here, case.solver.refresh(here, state))
        objectives = jnp.append(start.R, R), here.objective(point, s)
        return s, here.matvec(point), here.certificate(point, s), state.counters.steps, *objectives

    s, product, certificate, steps, R, objective = run(jax.random.key(0))
    np.testing.assert_allclose(s, product, rtol=1e-9, atol=1e-10)
    assert_brackets(certificate, optimum(case.problem))
    assert int(steps) == 300
    if case.exact is not None:
        assert objective < R[0]
        assert (np.diff(R) <= 1e-12).all()
        if name.startswith(("newton", "interior point", "polished")):  # whose checks find a point at least as good
            assert objective <= R[-1] * (1 + 1e-9)
        else:
            np.testing.assert_allclose(R[-1], objective, rtol=1e-9)


@every_solver
def test_the_step_cap_is_exact(name):
    solver = with_(SOLVERS[name].solver, max_steps=7, tol=1e-12)
    fit = jaxsvm.fit(problem(SOLVERS[name].problem, 1e4), solver)
    assert int(fit.steps) == 7
    if fit.certificate.relative_gap > 1e-12:  # a polish may end it within the seven
        assert fit.status.name == "MAX_STEPS"
        with pytest.raises(jaxsvm.ConvergenceError, match="MAX_STEPS"):
            jaxsvm.check(fit)


@pytest.mark.thorough
@every_solver
def test_other_values_compile_nothing(name):
    """Of the problem, the kernel, the tolerance, the cap and the key: neither for the host nor in a user's jit."""
    case = SOLVERS[name]
    others = [problem(case.problem, 1.7), problem(case.problem, 0.3, gamma=0.3)]
    looser = with_(case.solver, tol=2 * case.solver.tol)
    shorter = with_(looser, max_steps=case.solver.max_steps - 1)
    tries = list(zip(others, jax.random.split(jax.random.key(5), 2), (looser, shorter), strict=True))
    cut = case.solver.max_steps - 2
    for solver in (
        case.solver,
        with_(case.solver, max_steps=cut),
    ):  # the last steps to a cap are a program of their own
        jaxsvm.fit(problem(case.problem), solver, key=jax.random.key(4))
    with compilations() as seen:
        for other, key, solver in tries:
            jaxsvm.fit(other, solver, key=key)
    assert not seen
    solve, traced = in_jit(name)
    solve(problem(case.problem), jax.random.key(4), case.solver)
    before = len(traced)
    for other, key, solver in tries:
        fit = solve(other, key, solver)
        assert case.exact is None or fit.certificate.relative_gap <= looser.tol
    assert len(traced) == before


@pytest.mark.thorough
@every_solver
def test_lowers_for_every_platform(name):
    case = SOLVERS[name]

    def solve(x, y, value, key):
        here = PROBLEMS[case.problem].make(jaxsvm.gram(RBF(0.5), x), y, value)
        fit = fit_compiled(here, case.solver, jax.random.wrap_key_data(key))
        return fit.alpha if case.problem == "ball" else jaxsvm.decision_function(fit, here, x), fit.certificate

    with jax.enable_x64(False):
        shapes = (((N, 2), "float32"), ((N,), "float32"), ((), "float32"), ((2,), "uint32"))
        arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
        exported = jax.export.export(jax.jit(solve), platforms=["cpu", "cuda", "tpu"])(*arguments)
    assert exported.platforms == ("cpu", "cuda", "tpu")


@each(SOLVERS, rare=lambda case: case.slow or not case.weights)
def test_weight_zero_is_absence_and_weight_two_duplication(name):
    case = SOLVERS[name]
    solver = case.solver if case.exact is None else with_(case.solver, tol=case.exact)
    here = problem(case.problem, sample_weight=WEIGHT)
    fit = jaxsvm.fit(here, solver)
    for weights in (fit.alpha, fit.dual_coef):
        assert (np.asarray(weights)[WEIGHT == 0] == 0).all()
    assert np.isfinite(fit.margins).all()
    assert_brackets(fit.certificate, optimum(case.problem, weighted=True))
    if case.exact is None:
        return
    jaxsvm.check(fit)
    if case.problem == "box":
        return  # its q and c are of the samples by number: the oracle repeats none of them
    (x, y), repeated = data(), np.repeat(np.arange(N), WEIGHT.astype(int))
    K = kernel_matrix()[np.ix_(repeated, repeated)]
    assert PROBLEMS[case.problem].optimum(K, y[repeated], 2.0, np.ones(N)) == pytest.approx(
        optimum(case.problem, weighted=True), rel=1e-8
    )
    if case.problem == "ball":
        return
    longer = PROBLEMS[case.problem].make(jaxsvm.gram(RBF(0.5), x[repeated]), y[repeated], 2.0)
    duplicated = jaxsvm.check(jaxsvm.fit(longer, solver))
    # The primal is strongly convex: |w - w*|^2 <= 2 (P - D), and |phi(x)|^2 <= 2 with the constant feature.
    radius = sum(2 * np.sqrt(float(one.certificate.primal - one.certificate.dual)) for one in (fit, duplicated))
    there = jaxsvm.decision_function(duplicated, longer, x)
    np.testing.assert_allclose(jaxsvm.decision_function(fit, here, x), there, atol=radius + 1e-9)


@every_solver
def test_another_kind_of_problem_is_refused(name):
    solver = SOLVERS[name].solver
    for kind in PROBLEMS:
        other = problem(kind)
        if other.kind not in solver.solves:
            with pytest.raises(jaxsvm.InputError, match=f"is for .*, not for a {type(other).__name__}: use `"):
                jaxsvm.fit(other, solver)


# --- problems (`jaxsvm/problems/contract.py`)


@functools.partial(jax.jit, static_argnames="rows")
def _answers(here, vector, rows):
    """What a problem says of a point, to compare two of them by."""
    dual = here.feasible_point(vector)
    point = jnp.stack([dual] * rows) if rows > 1 else dual
    s = here.matvec(point)
    certificate = here.certificate(point, s)
    again = here.feasible_point(dual)
    return {
        "present": here.present,
        "feasible": here.feasible,
        "diagonal": here.diagonal,
        "point": point,
        "products": s,
        "margins": here.margins(point, s),
        "again": again,
        "gradient": here.gradient(point, here.margins(point, s)) if hasattr(here, "gradient") else s,
        "objective": here.objective(point, s),
        "certificate": certificate,
    }


def answers(kind, here, seed=0):
    vector = jnp.asarray(np.random.default_rng(seed).uniform(-0.5, 1.5, N), here.dtype)
    return _answers(here, vector, PROBLEMS[kind].rows)


def assert_same(one, other, eps):
    for name in ("present", "feasible", "diagonal", "point", "products", "objective", "margins"):
        a, b = np.asarray(one[name], np.float64), np.asarray(other[name], np.float64)
        size = np.abs(one["products"] if name == "margins" else b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=64 * eps * float(size), err_msg=name)
    for a, b in zip(one["certificate"][:2], other["certificate"][:2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e5 * eps)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@every_problem
def test_at_a_value_is_built_at_that_value(name, dtype):
    here, eps = problem(name, dtype=dtype), float(jnp.finfo(dtype).eps)
    if here.parameter is None:
        assert not hasattr(here, "at")
        return
    for value in PROBLEMS[name].values:
        there = here.at(PROBLEMS[name].unit * value)
        assert_same(answers(name, there), answers(name, problem(name, value, dtype)), eps)
    assert not jax.jit(lambda value: here.at(value).feasible)(-1.0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@every_problem
def test_weighted_is_built_with_these_weights(name, dtype):
    here, built = problem(name, dtype=dtype), problem(name, dtype=dtype, sample_weight=WEIGHT)
    half = np.where(WEIGHT == 2, 2.0, 1.0)
    for weighted in (here.weighted(WEIGHT), here.weighted(half).weighted(WEIGHT / half)):
        assert_same(answers(name, weighted), answers(name, built), float(jnp.finfo(dtype).eps))
    assert (np.asarray(built.present) == (WEIGHT > 0)).all()
    assert here.parameter is None or ((np.asarray(here.weighted(WEIGHT).weights) > 0) == (WEIGHT > 0)).all()
    assert not jax.jit(lambda weight: here.weighted(weight).feasible)(-WEIGHT)


@every_problem
def test_on_a_gram_operator_is_built_on_it(name):
    there = problem(name, gamma=0.3)
    assert_same(answers(name, problem(name).on(there.gram)), answers(name, there), float(jnp.finfo("float64").eps))


@pytest.mark.parametrize("weighted", [False, True])
@every_problem
def test_a_feasible_point_is_feasible_and_its_margins_give_its_products_back(name, weighted):
    """It bounds the optimum, which nothing but a feasible point does for any vector."""
    here = problem(name, sample_weight=WEIGHT) if weighted else problem(name)
    for seed in range(5):
        found = answers(name, here, seed)
        dual = found["point"] if PROBLEMS[name].rows == 1 else found["point"][-1]
        assert PROBLEMS[name].signed or dual.min() >= 0
        assert (np.asarray(dual)[~np.asarray(here.present)] == 0).all()
        np.testing.assert_allclose(found["again"], dual, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found["gradient"], found["products"], rtol=1e-12, atol=1e-12)
        assert_brackets(found["certificate"], optimum(name, weighted=weighted))


@pytest.mark.parametrize("at_bounds", [False, True])
def test_a_point_that_rounding_took_off_its_equality_keeps_its_support(at_bounds):
    """The rounding of `y'a` was spread over a whole class: `SVC.n_support_` counted all of it above 8,192 samples."""
    here = problem("hinge, free bias")
    y, upper = np.asarray(here.y), np.asarray(here.upper)
    a = np.where(np.arange(len(y)) % 3 == 0, upper if at_bounds else upper / 3, 0)
    for off in (1e-9, -1e-9, 0.1, -0.1):
        near = a.copy()
        near[np.flatnonzero((y > 0) & (a > 0))[0]] += a[a > 0][y[a > 0] < 0].sum() - a[y > 0].sum()
        near = np.clip(near, 0, upper) * (1 + off * (y > 0))
        for found in (here.feasible_point(jnp.asarray(near)), here.on_equality(jnp.clip(near, 0, upper))):
            assert not np.asarray(found)[near == 0].any()
            assert abs(y @ np.asarray(found)) < 1e-12 * upper.sum()


@functools.cache
def solved(name, dtype="float64"):
    gap = PROBLEMS[name].gap if dtype == "float64" else max(PROBLEMS[name].gap, 1e-5)
    return jaxsvm.check(jaxsvm.fit(problem(name, dtype=dtype), with_(PROBLEMS[name].solver, tol=gap)))


@every_problem
def test_the_certificate_of_a_solved_point(name):
    """What solvers look at on the way agrees with what the fit carries, which meets the optimum."""
    kind, here, fit = PROBLEMS[name], problem(name), solved(name)
    assert float(fit.certificate.relative_gap) <= kind.gap
    for bound in fit.certificate[:2]:
        assert float(bound) == pytest.approx(optimum(name), rel=2 * kind.gap)
    point = fit.alpha if kind.rows == 1 else jnp.stack([here.y * fit.dual_coef, fit.alpha])
    s = here.matvec(point)
    seen = here.certificate(point, s)
    for bound in seen[:2]:
        assert float(bound) == pytest.approx(optimum(name), rel=3 * kind.gap)
    assert not here.indefinite(here.objective(point, s))
    answer = here.certified(point, s, here.dtype)
    np.testing.assert_allclose(answer.alpha, fit.alpha, rtol=1e-9, atol=1e-12)


@each({name: kind for name, kind in PROBLEMS.items() if not kind.signed})
def test_a_point_that_is_not_feasible_is_never_certified(name):
    """One coefficient below 0, or above its bound: its numbers would look better than any feasible point's."""
    kind, here, fit = PROBLEMS[name], problem(name), solved(name)
    point = fit.alpha if kind.rows == 1 else jnp.stack([here.y * fit.dual_coef, fit.alpha])
    i = int(np.argmax(np.asarray(here.present)))
    outside = [-0.1 * float(fit.alpha.max())]
    if hasattr(here, "upper"):
        outside.append(1.1 * float(here.upper[i]))
    for value in outside:
        moved = point.at[..., i].set(value)
        assert here.certified(moved, here.matvec(moved), here.dtype).certificate.relative_gap == np.inf


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@each({name: kind for name, kind in PROBLEMS.items() if problem(name).restricts})
def test_a_restricted_problem_is_the_whole_with_the_rest_held(name, dtype):
    """Its objective is the whole one's, and a solution of it extends to one of the whole."""
    whole, fit = problem(name, dtype=dtype), solved(name, dtype)
    chex.assert_shape(whole.targets, (N,))
    alpha = np.asarray(fit.alpha)
    moving = (alpha > 0) & (alpha < np.asarray(getattr(whole, "upper", np.inf)))
    samples = np.sort(np.argsort(~moving, kind="stable")[: N - 10])
    assert moving.sum() <= len(samples)
    close = 1e-9 if dtype == "float64" else 2e-5
    part = whole.restrict(samples, fixed=fit.alpha)
    rng = np.random.default_rng(0)
    for _ in range(4):
        inside = part.feasible_point(jnp.asarray(rng.random(len(samples)), whole.dtype))
        moved = fit.alpha.at[samples].set(inside)
        here, there = part.objective(inside, part.matvec(inside)), whole.objective(moved, whole.matvec(moved))
        np.testing.assert_allclose(here, there, rtol=100 * close)
    again = jaxsvm.fit(part, with_(PROBLEMS[name].solver, tol=PROBLEMS[name].gap if dtype == "float64" else 1e-5))
    extended = fit.alpha.at[samples].set(again.alpha)
    assert float(whole.certificate(extended, whole.matvec(extended)).relative_gap) <= 10 * close
    assert float(again.certificate.dual) == pytest.approx(float(fit.certificate.dual), rel=10 * close)


@every_problem
def test_its_derivatives_are_those_of_the_oracle_or_refused(name):
    here, fit = problem(name), solved(name)
    if not here.differentiable:
        if name != "ball":  # whose radius has first derivatives (`test_ball.py`)
            with pytest.raises(jaxsvm.InputError, match="derivatives of a solution exist for"):
                implicit.value(here, fit)
        solver = with_(PROBLEMS[name].solver, max_steps=9)
        with pytest.raises(jaxsvm.InputError, match="derivatives of a solution exist for"):
            jax.grad(lambda gamma: jaxsvm.fit(here.on(jaxsvm.gram(RBF(gamma), data()[0])), solver).R)(0.5)
        return
    again = jaxsvm.check(jax.jit(implicit.solution)(here, fit))
    np.testing.assert_allclose(again.dual_coef, fit.dual_coef, atol=1e-3)
    assert float(again.certificate.relative_gap) <= 1e-9
    assert not implicit.one_sided(here, fit).any()
    unit, step = PROBLEMS[name].unit, 1e-4
    slope = jax.jit(jax.grad(lambda value: implicit.value(here.at(value), again)))(2.0 * unit) * unit
    difference = (optimum(name, 2.0 + step) - optimum(name, 2.0 - step)) / (2 * step)
    assert float(slope) == pytest.approx(difference, rel=1e-5, abs=1e-8 * abs(optimum(name, 2.0)))
