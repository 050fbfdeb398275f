"""Frank-Wolfe methods, by the numbers of their properties; what follows from the steps is not tried again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import oracle_hinge
import pytest
from samples import data, gram, svm

import jaxsvm
from jaxsvm import CoreVectorMachine, FrankWolfe
from jaxsvm.kernels import Linear, Precomputed

VARIANTS = ("classic", "away", "pairwise", "smo")
ORACLE_NAMES = {"classic": "fw", "away": "mfw", "pairwise": "pfw", "smo": "smo"}


def classification(n=100, d=3, noise=0.15, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = np.where(x[:, 0] + 0.5 * x[:, 1] ** 2 > 0.3, 1.0, -1.0)
    return x, np.where(rng.random(n) < noise, -y, y)


@functools.cache
def example(kernel="rbf", C=10.0):
    x, y = classification()
    params = {"rbf": {"gamma": 0.5}, "linear": {}, "poly": {"degree": 2, "gamma": 1.0, "coef0": 1.0}}
    K = oracle.kernel_matrix(kernel, x, **params[kernel])
    problem = jaxsvm.svm_problem(jaxsvm.gram(Precomputed(), K), y, C)
    return y, oracle.kt_matrix(K, y, C), problem, oracle.solve_svm(K, y, C)


@functools.partial(jax.jit, static_argnames=("steps", "points"))
def run(problem, solver, state, steps, points=True):
    """Step and record: the states' R and counters, and alpha and s where asked."""

    def body(state, _):
        state = solver.step(problem, state)
        record = {"R": state.R, "counters": state.counters}
        if points:
            record |= {"alpha": state.alpha, "s": state.s}
        return state, record

    return jax.lax.scan(body, state, None, length=steps)


@functools.cache
def trajectory(variant, kernel="rbf", C=10.0, steps=600, start="two-point"):
    _, _, problem, _ = example(kernel, C)
    solver = FrankWolfe(variant=variant, start=start)
    first = solver.init(problem, jax.random.key(1))
    last, records = run(problem, solver, first, steps)
    records = jax.tree.map(np.asarray, records)
    records["alpha"] = np.vstack([first.alpha, records["alpha"]])
    records["s"] = np.vstack([first.s, records["s"]])
    records["R"] = np.append(float(first.R), records["R"])
    return records


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_steps_are_those_of_the_reference(variant, kernel):
    """The compiled step walks with a plain NumPy transcript of the formulas."""
    _, Kt, _, _ = example(kernel)
    records = trajectory(variant, kernel)
    start = records["alpha"][0]
    for k, (alpha, R) in enumerate(oracle.reference_steps(Kt, start, ORACLE_NAMES[variant], 150)):
        np.testing.assert_allclose(records["alpha"][k + 1], alpha, atol=1e-11)
        assert abs(records["R"][k + 1] - R) <= 1e-12 * Kt.max()
    assert k == 149


@pytest.mark.parametrize("variant", VARIANTS)
def test_T1_T3_long_run_stays_on_the_simplex_and_exact(variant):
    _, Kt, problem, _ = example()
    solver = FrankWolfe(variant=variant, start="two-point")
    state = solver.init(problem, jax.random.key(1))
    state, _ = run(problem, solver, state, 20_000, points=False)
    alpha = np.asarray(state.alpha)
    assert alpha.min() >= 0
    assert abs(alpha.sum() - 1) <= 1e-12
    R = alpha @ Kt @ alpha
    assert abs(float(state.R) - R) <= 1e-9 * R
    np.testing.assert_allclose(state.s, Kt @ alpha, atol=1e-9 * R)


def test_a_history_keeps_kinds_of_steps_support_and_R():
    """Those of the NumPy transcript: in a step toward a vertex its weight alone grows. R is that of the best point."""
    y, Kt, problem, _ = example(C=100.0)
    solver, history = FrankWolfe("away", start="uniform", check_every=20, tol=0.2), jaxsvm.History()
    jaxsvm.fit(problem, solver, callback=history)
    start, at = np.full(100, 0.01), history.steps
    walked = [alpha for alpha, _ in oracle.reference_steps(Kt, start, "mfw", at[-1])]
    points = np.array([start, *walked])
    toward = np.append(0, np.cumsum((np.diff(points, axis=0) > 0).sum(axis=1) == 1))
    drops = np.append(0, np.cumsum(((points[:-1] > 0) & (points[1:] == 0)).any(axis=1)))
    assert len(at) > 3 and drops[-1] > 10
    kinds = {"toward": toward, "away": np.arange(len(points)) - toward, "drops": drops}
    for name, counts in kinds.items():
        np.testing.assert_array_equal(getattr(history, name), counts[at])
    gaps = [oracle.relative_gap_direct(problem.gram.K, y, 100.0, points[k]) for k in at]
    best = points[[at[np.argmin(gaps[: k + 1])] for k in range(len(at))]]
    np.testing.assert_array_equal(history.support_size, (best > 0).sum(axis=1))
    np.testing.assert_allclose(history.R, ((best @ Kt) * best).sum(axis=1), rtol=1e-9)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
def test_T7_certificate_equals_its_definition_and_bounds_the_error(kernel):
    y, Kt, problem, exact = example(kernel)
    K = np.asarray(problem.gram.K)
    for k in (0, 5, 50, 200, 600):
        alpha, s = trajectory("smo", kernel)["alpha"][k], trajectory("smo", kernel)["s"][k]
        certificate = problem.certificate(jnp.asarray(alpha), jnp.asarray(s))
        direct = float(oracle.relative_gap_direct(K, y, float(problem.C), alpha))
        assert abs(float(certificate.relative_gap) - direct) <= 1e-8 * max(direct, 1e-5)
        true = (alpha @ Kt @ alpha) / exact.R - 1
        assert float(certificate.relative_gap) >= true - 1e-9
        assert float(certificate.dual) <= exact.optimum * (1 + 1e-12)
        assert float(certificate.primal) >= exact.optimum * (1 - 1e-12)


@pytest.mark.parametrize("variant", ["classic", "away"])
def test_T8_T12_support_and_drops(variant):
    records = trajectory(variant, C=100.0, start="uniform")  # all active: plenty to drop
    first = (records["alpha"][0] > 0).sum()
    counters = records["counters"]
    support = (records["alpha"][1:] > 0).sum(axis=1)
    assert (support <= first + counters.toward - counters.drops).all()
    assert (counters.drops <= first + counters.toward).all()
    if variant == "classic":
        assert (counters.toward == np.arange(1, 601)).all()
    else:  # a drop sets one entry to exactly 0
        drops = np.flatnonzero(np.diff(np.append(0, counters.drops)))
        assert len(drops)
        for k in drops:
            assert ((records["alpha"][k] > 0) & (records["alpha"][k + 1] == 0)).sum() == 1


def test_T11_T14_paper_rule_on_a_ball():
    """FW from two points stops within 64 / eps + 1 steps; the ball inflated by (1 + eps) then covers everything."""
    x, _ = classification(n=60)
    K = oracle.kernel_matrix("rbf", x, gamma=0.5)
    problem, eps = jaxsvm.meb_problem(jaxsvm.gram(Precomputed(), K)), 0.02
    solver = FrankWolfe(variant="classic", stop="paper", start="two-point", tol=eps, check_every=10)
    with pytest.warns(jaxsvm.ConvergenceWarning, match="UNCERTIFIED"):
        fit = jaxsvm.fit(problem, solver, key=jax.random.key(0))
    assert float(fit.certificate.relative_gap) > eps
    assert int(fit.steps) <= 64 / eps + 1
    r2 = -float(fit.R)
    distances = np.asarray(problem.squared_distances(fit.alpha, fit.margins))
    assert distances.max() <= (1 + eps) ** 2 * r2 + 1e-10
    assert r2 <= oracle_hinge.solve_meb(K)[1] + 1e-10


def test_T13_core_vector_machine():
    """With exact inner solves r^2 rises at every insertion, the inserted vertex is new, and few are needed."""
    x, _ = classification(n=60)
    K = oracle.kernel_matrix("rbf", x, gamma=0.5)
    problem, eps = jaxsvm.meb_problem(jaxsvm.gram(Precomputed(), K)), 1e-3
    solver = CoreVectorMachine(tol=eps, inner_tol=1e-10, stop="paper", start="two-point", check_every=10)
    state, insertions, radii, sizes = solver.init(problem, jax.random.key(0)), 0, [], []

    @jax.jit
    def step(state):
        return solver.wants_vertex(problem, state), solver.step(problem, state)

    for _ in range(2000):
        before, (outside, state) = state, step(state)
        if bool(outside):
            insertions += 1
            radii.append(-float(before.R))
            sizes.append((int(before.core.sum()), int(state.core.sum())))
        if 2 * float(state.R - state.s.min()) <= (2 * eps + eps**2) * -float(state.R):
            break
    else:
        pytest.fail("the stop rule was not met in 2,000 steps")
    assert (np.diff(radii) > 0).all()
    assert all(after == before + 1 for before, after in sizes)
    assert 3 <= insertions <= np.ceil(2 / eps)
    with pytest.warns(jaxsvm.ConvergenceWarning, match="UNCERTIFIED"):
        fit = jaxsvm.fit(problem, solver)
    assert float(fit.certificate.relative_gap) <= 2 * eps + eps**2 + 1e-9


@pytest.mark.parametrize("variant", ["classic", "away"])
def test_T19_published_formulas_where_the_diagonal_is_constant(variant):
    """The published formulas, corrected, walk the same way; the away radius with its printed sign does not."""
    _, Kt, _, _ = example()
    records = trajectory(variant)

    def worst(printed_sign):
        steps = oracle.published_steps(Kt, records["alpha"][0], ORACLE_NAMES[variant], 500, printed_sign=printed_sign)
        errors = [abs(R - records["R"][k + 1]) for k, R in enumerate(steps)]
        return max(errors), len(errors)

    error, steps = worst(printed_sign=False)
    assert error <= 1e-10
    assert steps == 500
    if variant == "away":
        assert worst(printed_sign=True)[0] > 1e-4


def test_start_points():
    y, Kt, problem, exact = example()
    for kind in ("random", "two-point", "uniform"):
        solver = FrankWolfe(start=kind)
        state = solver.init(problem, jax.random.key(5))
        alpha = np.asarray(state.alpha)
        assert abs(alpha.sum() - 1) < 1e-12
        np.testing.assert_allclose(state.s, Kt @ alpha, atol=1e-12)
        support = np.flatnonzero(alpha)
        if kind == "two-point":
            a, b = support
            assert np.isclose(float(state.R), (Kt[a, a] + Kt[b, b] + 2 * Kt[a, b]) / 4)
            distance = Kt[a, a] + np.diag(Kt) - 2 * Kt[a]
            other = Kt[b, b] + np.diag(Kt) - 2 * Kt[b]
            assert np.isclose(distance.max(), distance[b]) or np.isclose(other.max(), other[a])
        if kind == "random":
            assert {-1.0, 1.0} == set(y[support])
            on, m = Kt[np.ix_(support, support)], len(support)
            least = -oracle_hinge.box_solution(2 * on, np.zeros(m), np.ones(m), np.ones(m), 1.0).optimum
            assert float(state.R) <= least * (1 + 1e-3)


# --- what the contract suite's samples tell of simplex steps alone


@pytest.mark.parametrize(("stop", "tol"), [("relative_fw", 1e-2), ("paper", 1e-4), ("certified_gap", 1e-4)])
def test_stop_rules_hold_where_they_say_so(stop, tol):
    here = svm(20.0)
    fit = jaxsvm.check(jaxsvm.fit(here, FrankWolfe(stop=stop, tol=tol)))
    Kt = oracle.kt_matrix(np.asarray(gram().K), data()[1], 20.0)
    alpha = np.asarray(fit.alpha)
    R, G = alpha @ Kt @ alpha, float(oracle.fw_gap(Kt, alpha))
    if stop == "relative_fw":
        assert tol * R * (1 + 1e-9) >= G
    elif stop == "paper":
        assert (2 * tol + tol**2) * (Kt.diagonal().max() - R) * (1 + 1e-9) >= G
    else:
        assert float(oracle.relative_gap_direct(np.asarray(gram().K), data()[1], 20.0, alpha)) <= tol


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("variant", ["classic", "away"])
def test_no_step_goes_onto_an_absent_sample(variant, dtype):
    """At an optimum that is exact no sample lies below R, and a search among none has the index 0."""
    weight = np.array([0.0, 1.0, 1.0], dtype)
    square = Linear()
    points = np.array([[100.0, 0.0], [0.0, 0.0], [1.0, 0.0]], dtype)
    ball = jaxsvm.meb_problem(jaxsvm.gram(square, points), sample_weight=weight)
    machine = jaxsvm.svm_problem(
        jaxsvm.gram(square, np.array([[0.5], [1.0], [-1.0]], dtype)), [-1.0, 1.0, -1.0], 1.0, sample_weight=weight
    )
    for here, truth in ((ball, 0.25), (machine, 1 / 3)):
        fit = jaxsvm.check(jaxsvm.fit(here, FrankWolfe(variant=variant, tol=1e-3, max_steps=2000)))
        assert fit.alpha[0] == 0
        assert float(fit.certificate.dual) <= truth * (1 + 1e-5) <= float(fit.certificate.primal) * (1 + 2e-5)
