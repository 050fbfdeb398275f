"""The Stochastic Batch Perceptron, property by property, against `oracle_hinge` and a NumPy recursion."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle_hinge as truth
import pytest
from jax import lax

import jaxsvm
from jaxsvm import HeldOut, StochasticBatchPerceptron, slack_problem
from jaxsvm.estimators import SBPClassifier
from jaxsvm.kernels import RBF, Linear, Precomputed
from jaxsvm.loop import bursts
from jaxsvm.numerics.sampling import systematic_draw
from jaxsvm.results.fit import Counters

N, NU, LANES = 60, 0.08, 30
data = functools.cache(truth.noisy)
SINGLE = StochasticBatchPerceptron()
BATCH = StochasticBatchPerceptron(batch=8)
EXACT = StochasticBatchPerceptron(batch=None)


@functools.cache
def exact(nu=NU, bias="none"):
    _, y, K = data()
    return truth.slack_solution(K, y, nu, bias)


def problem(nu=NU, bias="none", K=None, y=None, **options):
    _, signs, kernel = data()
    gram = jaxsvm.gram(Precomputed(), kernel if K is None else K)
    return slack_problem(gram, signs if y is None else y, nu, bias=bias, **options)


@functools.partial(jax.jit, static_argnames=("bias",))
def _run(K, y, nus, keys, solver, bias):
    def one(nu, key):
        here = slack_problem(jaxsvm.gram(Precomputed(), K), y, nu, bias=bias)
        state = solver.init(here, key)
        state = lax.fori_loop(0, solver.steps, lambda _, state: solver.step(here, state), state)
        return state, here.level(state.mean.c)

    return jax.vmap(one)(nus, keys)


def run(solver, steps, nu=NU, bias="none", K=None, y=None, seed=0, lanes=LANES):
    _, signs, kernel = data()
    keys = jax.random.split(jax.random.key(seed), lanes)
    nus = jnp.broadcast_to(jnp.asarray(nu, jnp.result_type(float) if K is None else K.dtype), (lanes,))
    arguments = (kernel if K is None else K, signs if y is None else y, nus, keys)
    solver = dataclasses.replace(solver, steps=jnp.asarray(steps))
    return jax.tree.map(_on_host, _run(*arguments, solver, bias))


def _on_host(leaf):
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf)


# --- draws


@functools.cache
def away_from_the_surface(bias="none"):
    here, inside = problem(bias=bias), 0.5 * exact().a
    state = BATCH.init(here, jax.random.key(0))
    counters = Counters.zero()._replace(steps=jnp.asarray(100, jnp.int32))
    c = here.matvec(jnp.asarray(inside)[None])[0]
    return state._replace(a=jnp.asarray(inside), c=c, r2=inside @ c, counters=counters), here


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("classes", [False, True])
def test_5_draws_are_unbiased(size, classes):
    """The mean of `Q[:, j]` over m draws is `Qp` to 5 r^2 / sqrt(m); what has no mass is never drawn.

    With classes of equal mass half of the draws of a mini-batch falls in each.
    """
    state, here = away_from_the_surface("free" if classes else "none")
    p, y, m = np.asarray(here.level(state.c).p), data()[1], 200_000
    keys = jax.random.split(jax.random.key(1), m // size)
    given = jnp.asarray(p), size, jnp.asarray(y) if classes else None
    index = np.asarray(jax.jit(jax.vmap(lambda key: systematic_draw(key, *given)))(keys))
    Q = truth.signed(data()[2], y)
    assert 1 < (p > 0).sum() < N
    share = np.bincount(index.ravel(), minlength=N) / m
    assert (share[p == 0] == 0).all()
    assert np.abs(Q @ share - Q @ p).max() <= 5 * float(here.radius) ** 2 / np.sqrt(m)
    if classes and size > 1:
        assert (y[index].sum(axis=1) == 0).all()


def test_draws_stay_in_the_support_at_its_ends():
    for p in (np.eye(5)[0], np.eye(5)[4], np.array([0, 0.5, 0, 0.5, 0]), np.array([0, 1e-30, 0, 0, 0])):
        index = np.asarray(systematic_draw(jax.random.key(2), jnp.asarray(p), 1000))
        assert set(index.tolist()) == set(np.flatnonzero(p).tolist())


# --- the state


def assert_consistent(state, Q, tolerance, steps):
    assert np.abs(state.c - state.a @ Q).max() <= tolerance * np.sqrt(steps)
    assert np.abs(state.r2 - (state.a * state.c).sum(axis=1)).max() <= tolerance
    assert np.abs(state.mean.c - state.mean.a @ Q).max() <= tolerance * np.sqrt(steps)
    assert (state.r2 <= 1).all()
    for part in (state.a, state.mean.a, state.mean.p):
        assert (part >= 0).all()
    np.testing.assert_allclose(state.mean.p.sum(axis=1), 1, atol=tolerance * np.sqrt(steps))
    assert (state.counters.steps == steps).all()
    assert not state.indefinite.any()


@pytest.mark.thorough
@pytest.mark.parametrize("solver", [SINGLE, BATCH, EXACT], ids=["single", "batch", "exact"])
def test_6_state_is_consistent(solver):
    state, _ = run(solver, 3000)
    Q = truth.signed(data()[2], data()[1])
    assert_consistent(state, Q, 1e-12, 3000)
    if solver is EXACT:  # then what stands for Qp is that
        np.testing.assert_allclose(state.mean.row, state.mean.p @ Q, atol=1e-12)


# --- convergence


@pytest.mark.thorough
def test_9_mean_gap_is_below_its_bound_and_falls():
    """Mean over 30 seeds of f* - f(mean); every one at least -1e-7."""
    steps, gaps = np.array([10, 100, 1000, 10_000]), []
    for count in steps:
        missing = exact().level - run(SINGLE, count)[1].level
        assert missing.min() >= -1e-7
        gaps.append(missing.mean())
    assert (gaps <= 3 * 1.0 / np.sqrt(steps)).all()  # r = 1
    assert np.polyfit(np.log(steps[1:]), np.log(gaps[1:]), 1)[0] <= -0.4


@pytest.mark.parametrize(("gap", "delta"), [(1.0, 0.5), (0.4, 0.01)])
def test_steps_for_a_gap_and_a_probability(gap, delta):
    """Lemma 3.2: at most a share `delta` of 200 runs ends further from the optimum."""
    K = 4 * data()[2]  # norms of 2: levels are twice those at half of nu
    solver = SINGLE.within(problem(K=K), gap, delta)
    assert solver.steps == np.ceil((2 * (3 + np.sqrt(8 * np.log(1 / delta))) / gap) ** 2)
    missing = 2 * exact(NU / 2).level - run(solver, solver.steps, K=K, lanes=200)[1].level
    assert missing.min() >= -1e-7
    assert (missing > gap).mean() <= delta
    with pytest.raises(jaxsvm.InputError, match="gap is 0"):
        SINGLE.within(problem(), 0)
    with pytest.raises(jaxsvm.InputError, match="average is 'last'"):
        dataclasses.replace(SINGLE, average="last").within(problem(), gap)


@pytest.mark.thorough
def test_11_gap_of_the_mean_p_falls_to_zero():
    """`U(pbar) - f(mean) <= 3 r / sqrt(T)` for exact supergradients, and what it encloses is the optimum."""
    _, y, K = data()
    for steps in (10, 100, 1000, 10_000):
        state, water = run(EXACT, steps, lanes=LANES)
        above = truth.slack_bound(K, y, NU, state.mean.p[0])
        assert water.level[0] <= exact().level * (1 + 1e-12)
        assert above >= exact().level * (1 - 1e-12)
        assert above - water.level[0] <= 3 / np.sqrt(steps)
    assert above - water.level[0] <= 1e-3 * above


# --- the algorithm itself


@pytest.mark.parametrize(
    "average", ["linear", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("uniform", "last"))]
)
def test_14_kernel_steps_are_the_vector_recursion(average):
    """Algorithm 1 in w-space by NumPy, with the same draws: iterates and means to 1e-10; with `burn_in`."""
    x, y, _ = data()
    here = slack_problem(jaxsvm.gram(Linear(), x), y, 0.3, bias="none")
    solver = StochasticBatchPerceptron(batch=2, average=average, burn_in=20)
    steps, key = 150, jax.random.key(5)

    @jax.jit
    def uniforms(key):
        def one(key, _):
            key, draw_key = jax.random.split(key)
            return key, jax.random.uniform(draw_key, (), jnp.float64)

        return lax.scan(one, key, None, length=steps)[1]

    state = solver.init(here, key)
    state = jax.jit(lambda s: lax.fori_loop(0, steps, lambda _, s: solver.step(here, s), s))(state)

    z, w, mean, total = y[:, None] * x, np.zeros(2), np.zeros(2), 0.0
    radius = np.linalg.norm(x, axis=1).max()
    for t, at in enumerate(np.asarray(uniforms(key)), start=1):
        c = z @ w
        set_of_ranks = c <= truth.level_by_sorting(c, N * 0.3)
        mass = np.cumsum(set_of_ranks / set_of_ranks.sum())
        index = np.searchsorted(mass, (np.arange(2) + at) / 2 * mass[-1], side="right")
        w = w + z[index].mean(axis=0) / (radius * np.sqrt(t))
        w = w / max(1, np.linalg.norm(w))
        share = {"uniform": 1.0, "linear": max(t - 20.0, 0), "last": 1.0}[average]
        if t > 20:
            mean, total = (w, 1.0) if average == "last" else (mean + share * w, total + share)
    np.testing.assert_allclose(np.asarray(state.a) @ z, w, atol=1e-10)
    np.testing.assert_allclose(np.asarray(state.mean.a) @ z, mean / total, atol=1e-10)
    np.testing.assert_allclose(state.mean.c, z @ mean / total, atol=1e-10)


# --- counters


def test_20_evaluations_are_counted_exactly():
    for steps in (1, 137):
        single, _ = run(SINGLE, steps)
        assert (_evaluations(single.counters) == N * steps).all()
        batch, _ = run(BATCH, steps, 0.0)  # one sample in the rank set but at the start, where all tie: one row
        assert (_evaluations(batch.counters) <= N * (8 * steps)).all()
        assert (_evaluations(batch.counters) >= N * steps).all()
    whole, _ = run(EXACT, 1)
    assert (_evaluations(whole.counters) == N * N).all()  # at w = 0 all responses tie


def _evaluations(counters):
    return counters.evaluations[:, 0].astype(int) * 2**20 + counters.evaluations[:, 1]


@pytest.mark.parametrize("rows", [1, 1023, 1024, 60_000, 522_910])
def test_20_products_beyond_32_bits_are_counted(rows):
    n = 522_910
    count = jax.jit(lambda rows: Counters.zero().stepped(rows, times=n))
    limbs = np.asarray(count(jnp.asarray(rows, jnp.int32)).evaluations, dtype=np.int64)
    assert limbs[0] * 2**20 + limbs[1] == rows * n


# --- fits


def test_a_level_below_zero_is_reported_and_never_divided_by():
    """At small nu the level is negative for a while; to divide by it would flip predictions."""
    solver = dataclasses.replace(SINGLE, steps=5)
    with pytest.warns(jaxsvm.ConvergenceWarning, match="MAX_STEPS"):
        fit = jaxsvm.fit(problem(1e-4), solver)
    assert float(fit.certificate.dual) < 0
    assert float(fit.certificate.relative_gap) == float("inf")
    _, y, K = data()
    assert (y * np.asarray(fit.dual_coef) >= 0).all()
    coefficients = y * np.asarray(fit.dual_coef)
    assert coefficients @ truth.signed(K, y) @ coefficients <= 1 + 1e-12  # w itself, not w / level
    assert float(fit.R) == 1.0


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_a_callback_costs_no_w_and_changes_no_end():
    """The best w and the best p are kept apart; a level that a callback saw is reached by the fit."""
    solver, seen = StochasticBatchPerceptron(steps=1000, tol=0.2, check_every=50), []
    alone, fit = jaxsvm.fit(problem(), solver), jaxsvm.fit(problem(), solver, callback=seen.append)
    assert int(alone.steps) == int(fit.steps)
    for one in (alone, *seen):
        assert float(fit.certificate.dual) >= float(one.certificate.dual)
        assert float(fit.certificate.primal) <= float(one.certificate.primal)
    _, y, K = data()
    coefficients = np.asarray(fit.dual_coef) * float(fit.certificate.dual)
    level = truth.level_by_sorting(y * (K @ coefficients), N * NU)
    assert level == pytest.approx(float(fit.certificate.dual), rel=1e-6)
    assert truth.slack_bound(K, y, NU, np.asarray(fit.alpha)) == pytest.approx(float(fit.certificate.primal), rel=1e-6)


@pytest.mark.thorough
def test_a_callback_sees_the_current_w_of_many_samples():
    """Above 2,048 samples too, where a certificate costs more than a chunk: held-out margins are those of its steps."""
    n = 2100
    y = np.random.default_rng(0).permutation(np.where(np.arange(n) < n // 2, -1, 1)).astype(np.float32)
    x = (y[:, None] + np.random.default_rng(1).normal(size=(n, 2))).astype(np.float32)
    held, seen = np.arange(n) % 5 == 0, []
    here = slack_problem(jaxsvm.gram(RBF(0.5), x), y, 0.05, bias="none", sample_weight=~held * 1.0)
    with pytest.warns(jaxsvm.ConvergenceWarning):
        jaxsvm.fit(here, StochasticBatchPerceptron(steps=600, tol=1e-6), callback=seen.append)
    assert [int(fit.steps) for fit in seen] == [100, 200, 300, 400, 500, 600]
    K = np.exp(-0.5 * ((x[:, None].astype(float) - x[None]) ** 2).sum(axis=2))
    levels = []
    for fit in seen:
        assert fit.kernel_evaluations == n * int(fit.steps)
        w, level = np.asarray(fit.dual_coef, float), float(fit.certificate.dual)
        margins = y * (K @ w)
        np.testing.assert_allclose(np.asarray(fit.margins), margins, atol=2e-3)
        unit = margins / np.sqrt(max(w @ K @ w, level**-2))
        levels.append(truth.level_by_sorting(unit[~held], 0.05 * (~held).sum()))
        assert 0 < level <= levels[-1] * (1 + 1e-6)
    assert levels[-1] > levels[0]


@pytest.mark.thorough
def test_working_sets_solve_it_in_float32():
    """The default above 2,048 samples: certificates in float64 begin the next hinge problem, whose sums had no bits."""
    x, y, _ = data()
    here = slack_problem(jaxsvm.gram(RBF(gamma=0.5), x.astype(np.float32)), y.astype(np.float32), NU, bias="none")
    fit = jaxsvm.check(jaxsvm.fit(here, jaxsvm.EquivalentHinge(jaxsvm.WorkingSet(size=16, fresh=8), tol=1e-2)))
    assert float(fit.certificate.dual) <= exact().level * (1 + 1e-5)
    assert float(fit.certificate.primal) >= exact().level * (1 - 1e-5)


# --- the stop rule of held-out samples, as a callback and as an option of the estimator


def clouds(n):
    """Two clouds that overlap."""
    random = np.random.default_rng(0)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    return random.normal(size=(n, 2)) + 0.9 * y[:, None], y


def test_a_fit_ends_at_twice_the_steps_of_the_lowest_held_out_error():
    """The errors noted are those of the margins by NumPy, and the fit ends at the first call that the rule names."""
    x, y = clouds(300)
    mask, K = np.arange(300) % 4 == 0, np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(-1))
    problem = jaxsvm.slack_problem(jaxsvm.gram(RBF(0.5), x), y, 0.05, sample_weight=~mask)
    held, seen = jaxsvm.HeldOut(mask, least=300), []

    def both(fit):
        decision = K @ np.asarray(fit.dual_coef) + float(fit.bias)
        seen.append((int(fit.steps), float((y * decision <= 0)[mask].mean())))
        return held(fit)

    fit = jaxsvm.fit(problem, jaxsvm.StochasticBatchPerceptron(20_000, tol=1e-9), callback=both)
    assert fit.status.name == "INTERRUPTED" and held.ended and dict(seen) == held.errors
    steps, errors = np.array(seen).T
    due = [k >= max(300, 2 * steps[: i + 1][errors[: i + 1].argmin()]) for i, k in enumerate(steps)]
    assert due[-1] and not any(due[:-1]) and int(fit.steps) == steps[-1]
    assert int(held.best.steps) == steps[errors.argmin()] < steps[-1]
    drawn = np.count_nonzero(held.best.dual_coef)
    assert len(held.best.support) == drawn < 225 and f" {drawn} of 300 samples in the support" in repr(held.best)


def test_an_estimator_that_stops_early_takes_fewer_steps_and_holds_out_what_it_was_told():
    x, y = clouds(400)
    whole, early = (
        SBPClassifier(steps=4000, tol=1e-9, random_state=0, early_stopping=early) for early in (False, True)
    )
    whole.fit(x, y), early.fit(x, y)
    assert early.fit_status_ == 0 and early.n_iter_[0] < whole.n_iter_[0] == 4000
    assert early.score(x, y) > whole.score(x, y) - 0.03
    assert len(early.support_) <= 360  # a tenth is in no draw


def test_an_estimator_that_stops_early_keeps_the_best_machine(monkeypatch):
    """The one with the lowest held-out error, certified anew where the callback saw margins alone (many samples)."""
    seen = []
    monkeypatch.setattr(
        "jaxsvm.estimators.stochastic.HeldOut", lambda *of, **how: seen.append(HeldOut(*of, **how)) or seen[0]
    )
    monkeypatch.setattr(bursts, "MEASURED", dataclasses.replace(bursts.MEASURED, samples_of_a_small_problem=100))
    x, y = clouds(400)
    early = SBPClassifier(steps=4000, tol=1e-9, random_state=2, early_stopping=True).fit(x, y)
    held, errors = np.argsort(y, kind="stable")[seen[0].mask[:400]], list(seen[0].errors.values())
    assert (early.predict(x[held]) != y[held]).mean() == min(errors) < errors[-1]
    assert early.fit_status_ == 0 and early.n_iter_[0] == max(seen[0].errors)
    assert np.isfinite(early.certificate_.primal).all()


@pytest.mark.parametrize("mask", [np.zeros(3, bool), np.arange(3)])
def test_a_mask_that_holds_out_nothing_is_refused(mask):
    with pytest.raises(jaxsvm.InputError, match="mask is"):
        jaxsvm.HeldOut(mask)
    x, y = clouds(40)
    problem = jaxsvm.slack_problem(jaxsvm.gram(RBF(0.5), x), y, 0.1)
    with pytest.raises(jaxsvm.InputError, match="mask has 3 entries: .*, 40"):
        jaxsvm.fit(problem, jaxsvm.StochasticBatchPerceptron(), callback=jaxsvm.HeldOut(np.ones(3, bool)))


def test_a_large_precomputed_matrix_shows_the_current_margins_at_every_chunk(monkeypatch):
    """Of a matrix that no kernel vouches for nothing is certified then, but margins are known."""
    x, y = clouds(300)
    little = dataclasses.replace(bursts.MEASURED, samples_of_a_small_problem=100)
    monkeypatch.setattr(bursts, "MEASURED", little)
    mask, K = np.arange(300) % 4 == 0, np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(-1))
    problem = jaxsvm.slack_problem(jaxsvm.gram(Precomputed(), K), y, 0.05, sample_weight=~mask)
    held, gaps = jaxsvm.HeldOut(mask, patience=100.0), []
    solver = jaxsvm.StochasticBatchPerceptron(2000, tol=1e-9)
    jaxsvm.fit(problem, solver, callback=lambda fit: gaps.append(float(fit.certificate.relative_gap)) or held(fit))
    assert list(held.errors) == list(range(100, 2001, 100))
    assert np.isinf(gaps).any() and len(set(held.errors.values())) > 2
