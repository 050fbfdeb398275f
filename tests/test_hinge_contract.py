"""One suite for the solvers of hinge problems, and what is particular to SDCA, the Perceptron and shrinking."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_path import compilations

import jaxsvm
from jaxsvm import SDCA, SMO, BallSGD, InteriorPoint, Pegasos, Perceptron, Status
from jaxsvm import StochasticBatchPerceptron as SBP
from jaxsvm.kernels import RBF

N = 60
EXACT = {"smo": SMO(tol=1e-6), "smo, single": SMO(tol=1e-4, variables=1), "sdca": SDCA(tol=1e-4)}
EXACT["interior point"] = InteriorPoint(tol=1e-8)
SOLVERS = {
    **EXACT,
    "sdca, random": SDCA(order="random", tol=1e-4),
    "perceptron": Perceptron(5 * N, output="average"),
    "pegasos": Pegasos(steps=400, batch=4, tol=1e-6),
    "ball sgd": BallSGD(5.0, steps=400, batch=4, tol=1e-6),
    "sbp": SBP(steps=400, batch=8, tol=1e-6),
    "sbp, exact": SBP(steps=300, batch=None, tol=1e-6),
}
RARE = ("sdca, random", "smo, single", "sbp, exact", "ball sgd")
"""With the slow tests: each compiles all anew."""
every_solver = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in RARE else name for name in SOLVERS]
)
pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")


@functools.cache
def data(n=N):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    y = np.where(x[:, 0] + x[:, 1] ** 2 > 0.7, 1.0, -1.0)
    return x, np.where(rng.random(n) < 0.1, -y, y)


GRAMS = {dtype: jaxsvm.gram(RBF(0.5), data()[0].astype(dtype)) for dtype in ("float32", "float64")}


def problem(name, value=2.0, dtype="float64", **options):
    maker = jaxsvm.slack_problem if name.startswith("sbp") else jaxsvm.hinge_problem
    value = value * 0.05 if name.startswith("sbp") else value
    return maker(GRAMS[dtype], data()[1], value, bias="none", **options)


@functools.cache
def optimum(name, value=2.0):
    """The optimal value by the exact solver of the other suite, to 1e-10."""
    if name.startswith("sbp"):
        fit = jaxsvm.fit(problem(name, value), SBP(steps=40_000, batch=None, average="linear", tol=1e-4))
        return float(fit.certificate.dual), float(fit.certificate.primal)
    fit = jaxsvm.check(jaxsvm.fit(problem("smo", value), SMO(tol=1e-10)))
    return float(fit.certificate.dual), float(fit.certificate.primal)


@every_solver
def test_certificates_bracket_the_optimum(name):
    fit = jaxsvm.fit(problem(name), SOLVERS[name])
    low, high = optimum(name)
    assert fit.certificate.dual <= high * (1 + 1e-12)
    assert fit.certificate.primal >= low * (1 - 1e-12)
    assert (fit.status == Status.CONVERGED) == (fit.certificate.relative_gap <= SOLVERS[name].tol)
    assert fit.kernel_evaluations > 0
    if name in EXACT:
        assert fit.status.name == "CONVERGED"


@every_solver
def test_jit_and_vmap_take_the_same_steps(name):
    keys, values = jax.random.split(jax.random.key(3), 2), jnp.array([0.5, 2.0])

    def solve(value, key):
        return jaxsvm.fit(problem(name, value), SOLVERS[name], key=key)

    lanes = jax.jit(jax.vmap(solve))(values, keys)
    host = solve(values[1], keys[1])
    assert lanes.status.shape == (2,)
    assert int(lanes.steps[1]) == int(host.steps)
    np.testing.assert_allclose(lanes.dual_coef[1], host.dual_coef, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(lanes.certificate.primal[1], host.certificate.primal, rtol=1e-7)


@every_solver
def test_float32_stays_float32(name):
    fit = jaxsvm.fit(problem(name, dtype="float32"), SOLVERS[name])
    chex.assert_type([fit.alpha, fit.dual_coef, fit.bias, fit.certificate.relative_gap], jnp.float32)
    low, high = optimum(name)
    assert fit.certificate.dual <= high * (1 + 1e-5)
    assert fit.certificate.primal >= low * (1 - 1e-5)


@pytest.mark.parametrize("name", ["smo", "sdca", "pegasos", "sbp"])
def test_weight_zero_is_absence(name):
    weight = np.where(np.arange(N) % 3 == 0, 0.0, 1.0)
    fit = jaxsvm.fit(problem(name, sample_weight=weight), SOLVERS[name])
    assert (np.asarray(fit.dual_coef)[weight == 0] == 0).all()
    assert np.isfinite(fit.margins).all()


@every_solver
def test_other_values_compile_nothing(name):
    solver = SOLVERS[name]
    jaxsvm.fit(problem(name), solver, key=jax.random.key(4))
    key, other = jax.random.key(5), problem(name, 1.7)
    with compilations() as seen:
        jaxsvm.fit(other, solver, key=key)
    assert not seen


@every_solver
def test_another_kind_of_problem_is_refused(name):
    other = jaxsvm.svm_problem(GRAMS["float64"], data()[1], 1.0)
    with pytest.raises(jaxsvm.InputError, match="problem"):
        jaxsvm.fit(other, SOLVERS[name])


@every_solver
def test_the_programs_lower_for_every_platform(name):
    step = jax.jit(SOLVERS[name].step)
    here = problem(name, dtype="float32")
    traced = step.trace(here, SOLVERS[name].init(here, jax.random.key(0)))
    for platform in ("cpu", "cuda", "tpu"):
        assert traced.lower(lowering_platforms=(platform,)).as_text()


# --- dual coordinate ascent and the Perceptron
# ---------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["permuted", "random"])
def test_sdca_raises_the_dual_and_stays_in_the_box(order):
    """Property 17: D does not fall, `0 <= a <= U`, and `s = Qa` up to rounding."""
    solver, here = SDCA(order=order), problem("sdca")

    @jax.jit
    def run(key):
        return jax.lax.scan(
            lambda state, _: ((after := solver.step(here, state)), (after.a, after.R)),
            solver.init(here, key),
            None,
            length=5 * N,
        )

    state, (a, R) = run(jax.random.key(0))
    assert (np.diff(R) <= 1e-12).all()
    assert a.min() >= 0
    assert (a <= here.upper).all()
    np.testing.assert_allclose(state.s, here.matvec(state.a), atol=1e-10)
    np.testing.assert_allclose(R[-1], here.objective(state.a, state.s), rtol=1e-10)
    assert int(state.counters.toward) == int((np.diff(np.vstack([np.zeros(N), a]), axis=0) != 0).any(axis=1).sum())


def test_a_permuted_epoch_visits_everyone_once():
    here, solver = problem("sdca"), SDCA()
    visited = []
    state = solver.init(here, jax.random.key(1))
    for t in range(2 * N):
        visits, i = state.visits.following(jnp.asarray(t), "permuted")
        state = state._replace(visits=visits)
        visited.append(int(i))
    assert sorted(visited[:N]) == sorted(visited[N:]) == list(range(N))
    assert visited[:N] != visited[N:]


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_mistakes_of_the_perceptron_are_bounded(margin):
    """Property 18: `M <= L + r |u| sqrt(L) + r^2 |u|^2` for any u, on the samples that were mistaken; no tolerance.

    With a margin it holds for mistakes that count `1 - margin` of the hinge at least: only the plain one is tested so.
    """
    here, solver = problem("perceptron"), Perceptron(3 * N, margin=margin)

    @jax.jit
    def run(key):
        start = solver.init(here, key)
        return jax.lax.scan(lambda state, _: ((after := solver.step(here, state)), after.h), start, None, length=3 * N)

    state, h = run(jax.random.key(2))
    counts = np.diff(np.vstack([np.zeros(N), h]), axis=0)
    assert set(np.unique(counts)) <= {0.0, 1.0}
    np.testing.assert_allclose(state.s, here.matvec(state.h), atol=1e-9)
    mistakes = counts.sum()
    assert mistakes == int(state.counters.toward)
    if margin:
        return
    K = np.asarray(here.gram.K)
    y = data()[1]
    Q = y[:, None] * y * K
    for C in (0.01, 1.0, 100.0):
        a = np.asarray(jaxsvm.fit(problem("smo", C), SMO(tol=1e-8)).alpha)
        u2, losses = a @ Q @ a, np.maximum(0, 1 - Q @ a)
        L = (counts.sum(axis=0) * losses).sum()
        r2 = K.diagonal().max()
        assert mistakes <= L + np.sqrt(r2 * u2 * L) + r2 * u2


def test_outputs_of_the_perceptron():
    """The average is the mean of all iterates; the random one is one of them."""
    here, iterates = problem("perceptron"), []
    plain, state = Perceptron(N), None
    for output in ("last", "average", "random"):
        solver = Perceptron(N, output=output)
        state = solver.init(here, jax.random.key(4))
        seen = []
        step = jax.jit(solver.step)
        for _ in range(N):
            state = step(here, state)
            seen.append(np.asarray(state.h))
        iterates = np.stack(seen)
        kept = np.asarray(state.kept_h)
        if output == "average":
            np.testing.assert_allclose(kept, iterates.mean(axis=0), atol=1e-12)
        elif output == "last":
            np.testing.assert_array_equal(kept, iterates[-1])
        else:
            assert (iterates == kept).all(axis=1).any()
    assert plain.max_steps == N


def test_the_best_multiple_is_the_best():
    here = problem("perceptron")
    fit = jaxsvm.fit(here, Perceptron(2 * N))
    w = data()[1] * np.asarray(fit.dual_coef)
    s = np.asarray(here.matvec(w))

    def primal(t):
        return t * t * (w @ s) / 2 + (np.asarray(here.upper) * np.maximum(0, 1 - t * s)).sum()

    assert primal(1.0) == pytest.approx(float(fit.certificate.primal), rel=1e-9)
    assert primal(1.0) <= min(primal(t) for t in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: SDCA(order="sorted"), "order"),
        (lambda: Perceptron(5, output="best"), "output"),
        (lambda: Perceptron(5, order="sorted"), "order"),
        (lambda: SMO(variables=3), "variables"),
        (lambda: _free(SDCA()), "free bias"),
        (lambda: _free(Perceptron(5)), "free bias"),
        (lambda: _free(SMO(variables=1)), "free bias"),
        (lambda: jaxsvm.fit(problem("sdca"), SDCA(), init=np.ones(3)), "init"),
        (lambda: jaxsvm.fit(problem("perceptron"), Perceptron(5), init=np.ones(3)), "init"),
    ],
)
def test_refuses(make, word):
    with pytest.raises(jaxsvm.InputError, match=word):
        make()


def _free(solver):
    return jaxsvm.fit(jaxsvm.hinge_problem(GRAMS["float64"], data()[1], 1.0, bias="free"), solver)


# --- restricted problems
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("bias", ["free", pytest.param("regularized", marks=pytest.mark.slow)])
def test_a_restricted_problem_is_the_whole_with_the_rest_held(bias, dtype):
    whole = jaxsvm.hinge_problem(GRAMS[dtype], data()[1], 1000.0, bias=bias)
    tol, close = (1e-12, 1e-9) if dtype == "float64" else (1e-6, 1e-5)
    fit = jaxsvm.fit(whole, SMO(tol=tol))
    samples = np.sort(np.argsort(np.abs(np.asarray(fit.margins) - 1), kind="stable")[:30])
    part = whole.restrict(samples, fixed=fit.alpha)
    rng = np.random.default_rng(0)
    for _ in range(4):  # the same objective, of any point
        inside = jnp.asarray(rng.random(len(samples)), whole.dtype)
        moved = fit.alpha.at[samples].set(inside)
        here, there = part.objective(inside, part.matvec(inside)), whole.objective(moved, whole.matvec(moved))
        np.testing.assert_allclose(here, there, rtol=100 * close)
    again = jaxsvm.fit(part, SMO(tol=tol))
    extended = fit.alpha.at[samples].set(again.alpha)
    gap, before = (whole.certificate(a, whole.matvec(a)).relative_gap for a in (extended, fit.alpha))
    assert float(gap) <= 2 * float(before) + close
    assert float(again.certificate.dual) == pytest.approx(float(fit.certificate.dual), rel=close)


def test_paths_of_hinge_problems():
    Cs = [10.0, 0.1, 1.0]
    for bias in ("free", "none"):
        make = functools.partial(jaxsvm.hinge_problem, bias=bias)
        path = jaxsvm.check(jaxsvm.solve_path(make(GRAMS["float64"], data()[1]), Cs, tol=1e-6))
        for C, fit in zip(Cs, path, strict=True):
            alone = jaxsvm.fit(make(GRAMS["float64"], data()[1], C), SMO(tol=1e-8))
            assert float(fit.certificate.primal) == pytest.approx(float(alone.certificate.primal), rel=2e-6)


@pytest.mark.slow
def test_paths_over_nu_and_seeds():
    nus, keys = jnp.array([0.05, 0.2]), jax.random.split(jax.random.key(0), 3)
    solver = SBP(steps=300, batch=8, tol=1e-9)

    def solve(nu, key):
        return jaxsvm.fit(jaxsvm.slack_problem(GRAMS["float64"], data()[1], nu, bias="none"), solver, key=key)

    fits = jax.jit(jax.vmap(lambda key: jax.vmap(lambda nu: solve(nu, key))(nus)))(keys)
    assert fits.alpha.shape == (3, 2, N)
    assert (fits.certificate.dual[:, 1] > fits.certificate.dual[:, 0]).all()
    assert np.unique(np.asarray(fits.certificate.dual)).size == 6


def test_random_fourier_features_make_a_linear_hinge_problem():
    x, y = data(240)
    low = jaxsvm.gram(RBF(0.5), x, rank=256, method="fourier", key=jax.random.key(0))
    fit = jaxsvm.check(jaxsvm.fit(jaxsvm.hinge_problem(low, y, 1.0, bias="free"), SMO(tol=1e-4)))
    exact = jaxsvm.fit(jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), x), y, 1.0, bias="free"), SMO(tol=1e-4))
    assert float(fit.certificate.primal) == pytest.approx(float(exact.certificate.primal), rel=0.1)


def test_cross_validation_and_a_grid_for_hinge_problems():
    make = functools.partial(jaxsvm.hinge_problem, bias="none")
    grid = jaxsvm.C_grid(make(GRAMS["float64"], data()[1]), 5)
    assert (np.diff(grid) > 0).all()
    low = jaxsvm.fit(make(GRAMS["float64"], data()[1], grid[0] * 0.99), SMO(tol=1e-9))
    assert (low.margins <= 1 + 1e-6).all()
    chosen = jaxsvm.cross_validate(make(GRAMS["float64"], data()[1]), grid, 3)
    assert (np.asarray(chosen.status) == Status.CONVERGED).all()
    assert 0.6 < chosen.mean.max() <= 1
    with pytest.raises(jaxsvm.InputError, match="SlackProblem"):
        jaxsvm.C_grid(jaxsvm.slack_problem(GRAMS["float64"], data()[1], 0.1), 5)
