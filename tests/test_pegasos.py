"""Pegasos and ball-SGD: against the recursions in NumPy, the bounds of the theory, and the exact solver."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse

import jaxsvm
from jaxsvm.kernels import Linear, Precomputed
from jaxsvm.solvers.stochastic import iterates
from jaxsvm.solvers.stochastic.pegasos import (
    BallSGD,
    Pegasos,
    average_iterates,
    average_of,
    pegasos_transform,
    project_onto_ball,
)

N, D, C, BATCH, STEPS = 40, 5, 0.7, 4, 60
CHECK = 1  # an unrolled loop of steps takes several times as long to compile
LAM = 1 / (N * C)
GRAMS = ("dense", "csr", "kernel")
every_gram = pytest.mark.parametrize("kind", GRAMS)


@functools.cache
def data(dtype="float64"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.6)
    y = np.where(x @ rng.normal(size=D) + 0.5 * rng.normal(size=N) > 0, 1.0, -1.0)
    return x.astype(dtype), y.astype(dtype)


@functools.cache
def gram(kind, dtype="float64"):
    x, _ = data(dtype)
    with jax.ensure_compile_time_eval():  # whoever asks first may be traced, and what is cached then would be a tracer
        if kind == "kernel":
            return jaxsvm.gram(Precomputed(), x @ x.T)
        return jaxsvm.gram(Linear(), scipy.sparse.csr_matrix(x) if kind == "csr" else x, tile=16)


def problem(kind="dense", C=C, dtype="float64", bias="none", **options):
    return jaxsvm.hinge_problem(gram(kind, dtype), data(dtype)[1], C, bias=bias, **options)


@functools.cache
def optimum(bias="none", C=C):
    return float(jaxsvm.check(jaxsvm.fit(problem(C=C, bias=bias), jaxsvm.SMO(tol=1e-10))).certificate.dual)


@functools.cache
def indices(order="permuted"):
    """The batches that solvers with key 0 see, `(STEPS, BATCH)`."""
    here = problem()  # outside of the trace: what is cached in it would be a tracer

    def draw(draws, _):
        return iterates.next_batch(here, draws, BATCH, order)[:2]

    return np.asarray(jax.lax.scan(draw, iterates.Draws.begin(jax.random.key(0)), None, length=STEPS)[1])


def recursion(etas, lam, radius):
    """The vector form in NumPy: `w_1 ... w_(T+1)`."""
    x, y = data()
    w = [np.zeros(D)]
    for eta, batch in zip(etas, indices(), strict=False):
        violated = y[batch] * (x[batch] @ w[-1]) < 1
        half = (1 - eta * lam) * w[-1] + eta / len(batch) * (violated * y[batch]) @ x[batch]
        length = np.linalg.norm(half)
        w.append(half * min(1, radius / length) if length > 0 else half)
    return np.array(w)


@jax.jit
def walk(here, solver):
    """Coefficients of all iterates and of their average, and the state at the end."""

    def one(state, _):
        state = solver.step(here, state)
        return state, state.sums.iterate

    state, coefficients = jax.lax.scan(one, solver.init(here, jax.random.key(0)), None, length=STEPS)
    return coefficients, state.sums.mean, state


def as_vector(coefficients):
    x, y = data()
    return np.asarray(coefficients) @ (y[:, None] * x)


# --- the recursion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("projection", [True, pytest.param(False, marks=pytest.mark.slow)])
@every_gram
def test_count_form_is_the_vector_recursion(kind, projection):
    solver = Pegasos(batch=BATCH, offset=0.0, projection=projection, average="uniform")
    coefficients, mean, state = walk(problem(kind), solver)
    radius = LAM**-0.5 if projection else np.inf
    w = recursion(1 / (LAM * np.arange(1, STEPS + 1)), LAM, radius)
    assert not projection or np.isclose(np.linalg.norm(w, axis=1), radius).any()  # or nothing is tested
    scale = np.abs(w).max()
    np.testing.assert_allclose(as_vector(coefficients), w[1:], atol=1e-12 * scale)
    np.testing.assert_allclose(as_vector(mean), w[:-1].mean(axis=0), atol=1e-12 * scale)
    assert (np.linalg.norm(as_vector(coefficients), axis=1) <= radius * (1 + 1e-12)).all()
    x, y = data()
    v = y * (x @ w[-1]) if kind == "kernel" else w[-1]
    np.testing.assert_allclose(state.sums.s * state.at.v, v, atol=1e-12 * max(scale, np.abs(v).max()))


@pytest.mark.parametrize("average", ["linear", "suffix", "last"])
def test_averages(average):
    solver = Pegasos(steps=STEPS, batch=BATCH, offset=0.0, average=average)
    state = jax.jit(solver.refresh)(problem("csr"), walk(problem("csr"), solver)[2])
    w = recursion(1 / (LAM * np.arange(1, STEPS + 1)), LAM, LAM**-0.5)
    weights = {"linear": np.arange(1, STEPS + 1), "suffix": np.arange(STEPS) >= STEPS // 2}
    expected = w[-1] if average == "last" else np.average(w[:-1], axis=0, weights=weights[average])
    np.testing.assert_allclose(as_vector(state.point[0]), expected, atol=1e-12 * np.abs(w).max())


@pytest.mark.parametrize("kind", [pytest.param("dense", marks=pytest.mark.slow), "csr"])
def test_a_users_schedule_and_scales_that_vanish(kind):
    """A constant step of 0.9 / lam shrinks the scale to 1e-60: it has to be multiplied out on the way."""
    schedule = optax.constant_schedule(0.9 / LAM)
    coefficients, mean, _ = walk(problem(kind), Pegasos(batch=BATCH, schedule=schedule))
    w = recursion(np.full(STEPS, 0.9 / LAM), LAM, LAM**-0.5)
    np.testing.assert_allclose(as_vector(coefficients), w[1:], atol=1e-11 * np.abs(w).max())
    expected = np.average(w[:-1], axis=0, weights=np.arange(1, STEPS + 1))
    np.testing.assert_allclose(as_vector(mean), expected, atol=1e-11 * np.abs(w).max())


@pytest.mark.parametrize("order", ["permuted", "random"])
def test_draws_are_unbiased(order):
    drawn = indices(order)
    assert all(len(set(batch)) == BATCH for batch in drawn)
    if order == "permuted":
        passes = drawn.reshape(-1, N)
        assert (np.sort(passes, axis=1) == np.arange(N)).all()
        assert len({tuple(visits) for visits in passes}) > 1
    else:
        keys = jax.random.split(jax.random.key(1), 4000)
        first = jax.vmap(lambda key: iterates.next_batch(problem(), iterates.Draws.begin(key), BATCH, order)[1])(keys)
        shares = np.bincount(np.ravel(first), minlength=N) / first.size
        assert np.abs(shares - 1 / N).max() < 5 * (1 / (N * first.size)) ** 0.5
    for n in (2, 3, 40, 97, 100_000, 40_000_000):
        steps = iterates.strides(n, 64)
        assert (np.gcd(steps, n) == 1).all()
        assert n + 64 * int(steps.max()) < 2**31


def test_a_width_beyond_the_chunk_is_read_in_chunks():
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(12, 400, 0.5, format="csr", random_state=0)
    x = scipy.sparse.vstack([x, scipy.sparse.csr_matrix((1, 400))]).tocsr()
    points = jaxsvm.gram(Linear(), x, tile=4).x
    assert points.width > iterates.CHUNK
    index, v, coefficients = np.array([11, 0, 12, 5]), rng.normal(size=400), np.array([0.5, 0.0, 3.0, -2.0])
    np.testing.assert_allclose(iterates.sparse_margins(points, jnp.asarray(index), jnp.asarray(v)), x[index] @ v)
    added = iterates.sparse_add(points, jnp.asarray(index), jnp.asarray(coefficients), jnp.asarray(v))
    np.testing.assert_allclose(added, v + x[index].T @ coefficients)


# --- fits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "bias"), [("dense", "none"), ("csr", "regularized"), ("kernel", "regularized")])
def test_the_certificate_brackets_the_optimum(kind, bias):
    here = problem(kind, bias=bias)
    fit = jaxsvm.check(jaxsvm.fit(here, Pegasos(steps=40_000, batch=BATCH, tol=1e-2, check_every=CHECK)))
    assert fit.certificate.relative_gap <= 1e-2
    assert fit.certificate.dual <= optimum(bias) * (1 + 1e-9)
    assert optimum(bias) <= fit.certificate.primal * (1 + 1e-9)
    assert (fit.alpha >= 0).all()
    assert (fit.alpha <= C).all()
    x, y = data()
    scores = jaxsvm.decision_function(fit, here, gram("kernel").K if kind == "kernel" else x)
    w = x.T @ np.asarray(fit.dual_coef)
    np.testing.assert_allclose(scores, x @ w + float(fit.bias), atol=1e-10)
    value = (w @ w + float(fit.bias) ** 2) / 2 + C * np.maximum(0, 1 - y * np.asarray(scores)).sum()
    assert value == pytest.approx(float(fit.certificate.primal), rel=1e-9)


def test_steps_and_evaluations_are_counted():
    with pytest.warns(jaxsvm.ConvergenceWarning, match="MAX_STEPS"):
        fit = jaxsvm.fit(problem("kernel"), Pegasos(steps=57, batch=BATCH, tol=1e-9, check_every=CHECK))
    assert int(fit.steps) == 57
    solver = Pegasos(batch=1, offset=0.0)
    counters = walk(problem("kernel"), solver)[2].counters
    assert 0 < int(counters.toward) < STEPS
    assert int(counters.evaluations[1]) == N * int(counters.toward)  # a rejected draw costs none
    assert int(walk(problem("csr"), solver)[2].counters.evaluations[1]) == STEPS


@pytest.mark.thorough
def test_a_start_is_kept_whatever_the_steps():
    """Those of `1 / (lam t)` too, whose first one would erase it: a start stands for as many as its gap is worth."""
    exact = jaxsvm.fit(problem(), jaxsvm.SMO(tol=1e-8))
    for offset in (1e4, 0.0, None):
        solver = Pegasos(batch=BATCH, offset=offset)
        state = solver.refresh(problem(), solver.step(problem(), solver.init(problem(), init=exact.alpha)))
        np.testing.assert_allclose(as_vector(state.sums.iterate), as_vector(exact.alpha), rtol=0.1, atol=0.02)


def test_a_start_that_overflows_is_not_finite():
    """A gap of NaN is no certificate, and none is returned."""
    with pytest.warns(jaxsvm.ConvergenceWarning, match="NOT_FINITE"):
        fit = jaxsvm.fit(problem("kernel"), Pegasos(steps=57, batch=BATCH, check_every=CHECK), init=np.full(N, 1e300))
    assert fit.status.name == "NOT_FINITE"
    assert np.isfinite(np.asarray(fit.dual_coef)).all()
    assert not np.isnan(float(fit.certificate.relative_gap))


# --- streams and pieces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", ["uniform", pytest.param("last", marks=pytest.mark.slow)])
def test_a_stream_is_the_batch_recursion(average):
    (x, y), solver = data(), Pegasos(offset=0.0, average=average)
    start = solver.start(D, LAM, bias="none")
    draws = jnp.asarray(indices())
    update = lambda state, index: (solver.update(state, jnp.asarray(x)[index], jnp.asarray(y)[index]), None)  # noqa: E731
    state = jax.jit(lambda: jax.lax.scan(update, start, draws)[0])()
    w = recursion(1 / (LAM * np.arange(1, STEPS + 1)), LAM, LAM**-0.5)
    expected = w[-1] if average == "last" else w[:-1].mean(axis=0)
    np.testing.assert_allclose(solver.coef(state), expected, atol=1e-12 * np.abs(w).max())
    assert float(solver.intercept(state)) == 0
    sparse = solver.start(D, LAM, bias="none")
    for batch in indices()[:5]:
        sparse = solver.update(sparse, jaxsvm.gram(Linear(), scipy.sparse.csr_matrix(x[batch]), tile=2).x, y[batch])
    np.testing.assert_allclose(sparse.w, w[5], atol=1e-12 * np.abs(w).max())


def test_a_stream_learns_with_its_own_offset_bias_and_weights():
    (x, y), solver = data("float32"), Pegasos()
    state = solver.start(D, LAM, dtype="float32")
    update = jax.jit(solver.update)
    for _ in range(40):
        state = update(state, x, y, np.ones(N, "float32"))
    assert state.w.dtype == jnp.float32
    v = np.append(np.asarray(solver.coef(state), float), float(solver.intercept(state)))
    value = v @ v / 2 + C * np.maximum(0, 1 - y * (x @ v[:-1] + v[-1])).sum()
    assert value <= optimum("regularized") * 1.1
    assert 0 < float(state.loss) < 1


def test_pieces_work_in_a_users_optax_loop():
    x, y = (jnp.asarray(part) for part in data())
    transform = optax.chain(pegasos_transform(LAM), project_onto_ball(LAM**-0.5), average_iterates("linear"))
    w, state = jnp.zeros(D), transform.init(jnp.zeros(D))
    for batch in indices()[:20]:
        gradient = jax.grad(lambda w, batch=batch: optax.losses.hinge_loss(x[batch] @ w, y[batch]).mean())(w)
        updates, state = transform.update(gradient, state, w)
        w = optax.apply_updates(w, updates)
    expected = recursion(1 / (LAM * np.arange(1, 21)), LAM, LAM**-0.5)
    np.testing.assert_allclose(w, expected[-1], atol=1e-12 * np.abs(expected).max())
    mean = np.average(expected[:-1], axis=0, weights=np.arange(1, 21))
    np.testing.assert_allclose(average_of(state), mean, atol=1e-12 * np.abs(expected).max())


def test_the_projection_takes_any_optimiser_and_tree():
    transform = optax.chain(optax.adam(1.0), project_onto_ball(1.0))
    params = {"w": jnp.ones(3), "b": jnp.zeros(())}
    state = transform.init(params)
    for _ in range(5):
        gradient = jax.tree.map(lambda leaf: -jnp.ones_like(leaf), params)
        updates, state = transform.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    assert float(optax.tree.norm(params)) == pytest.approx(1, abs=1e-12)
    for piece in (project_onto_ball(1.0), average_iterates()):
        with pytest.raises(jaxsvm.InputError, match="params is None"):
            piece.update(params, piece.init(params))


# --- SGD over a ball -------------------------------------------------------------------------------------------------


@every_gram
def test_ball_sgd_is_its_recursion(kind):
    x, _ = data()
    B, r = 0.8, np.linalg.norm(x, axis=1).max()
    coefficients, mean, _ = walk(problem(kind), BallSGD(B, batch=BATCH))
    w = recursion(B / (r * np.sqrt(np.arange(1, STEPS + 1))), 0.0, B)
    np.testing.assert_allclose(as_vector(coefficients), w[1:], atol=1e-12)
    np.testing.assert_allclose(as_vector(mean), w[:-1].mean(axis=0), atol=1e-12)
    assert (np.linalg.norm(as_vector(coefficients), axis=1) <= B * (1 + 1e-12)).all()


def test_ball_sgd_finds_the_svm_whose_norm_is_the_radius():
    exact = jaxsvm.fit(problem(), jaxsvm.SMO(tol=1e-10))
    x, y = data()
    w = as_vector(exact.alpha)
    B, r = np.linalg.norm(w), np.linalg.norm(x, axis=1).max()
    T = 3000
    with pytest.warns(jaxsvm.ConvergenceWarning, match="MAX_STEPS"):
        fit = jaxsvm.fit(problem("kernel"), BallSGD(B, steps=T, batch=BATCH, tol=1e-6, check_every=CHECK))
    found = x.T @ np.asarray(fit.dual_coef)
    loss, best = (np.maximum(0, 1 - y * (x @ v)).mean() for v in (found, w))
    assert np.linalg.norm(found) <= B * (1 + 1e-12)
    assert -1e-9 <= loss - best <= 3 * r * B / T**0.5
    assert fit.certificate.dual <= optimum() * (1 + 1e-9) <= fit.certificate.primal * (1 + 2e-9)
    assert float(fit.certificate.relative_gap) < 0.1


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Pegasos(batch=0), "batch is 0"),
        (lambda: Pegasos(average="median"), "average is 'median'"),
        (lambda: Pegasos(order="sorted"), "order is 'sorted'"),
        (lambda: Pegasos(schedule=0.1), "schedule is 0.1"),
        (lambda: Pegasos(offset=-1.0).start(3, 1.0), "offset is -1.0"),
        (lambda: jaxsvm.fit(problem(), BallSGD(0.0)), "radius is 0.0"),
        (lambda: average_iterates("median"), "average is 'median'"),
        (lambda: jaxsvm.fit(problem(), Pegasos(batch=N + 1)), "batch is 41"),
        (lambda: jaxsvm.fit(problem(bias="free"), Pegasos()), "free bias.*SMO"),
        (lambda: jaxsvm.fit(problem(bias="free"), BallSGD(1.0)), "free bias.*SMO"),
        (lambda: Pegasos().start(0, 1.0), "d is 0"),
        (lambda: Pegasos().start(3, 0.0), "lam is 0.0"),
        (lambda: Pegasos().start(3, 1.0, bias="free"), "bias is 'free'"),
        (lambda: Pegasos().update(Pegasos().start(3, 1.0), np.ones((2, 4)), np.ones(2)), r"x has shape \(2, 4\)"),
        (lambda: Pegasos().update(Pegasos().start(3, 1.0), np.ones((2, 3)), np.ones(3)), r"y has shape \(3,\)"),
    ],
)
def test_refusals_say_what_to_do(make, words):
    with pytest.raises(jaxsvm.InputError, match=words):
        make()


def test_a_gap_is_worth_the_steps_of_the_bound():
    """`(sqrt(lam) + r)^2 / (2 lam gap)` with r the longest present sample."""
    x, y = data()
    weight = np.ones(N)
    weight[np.linalg.norm(x, axis=1).argmax()] = 0
    here = jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, C, bias="none", sample_weight=weight)
    lam, r = 1 / (C * weight.sum()), np.linalg.norm(x[weight > 0], axis=1).max()
    assert float(Pegasos().worth(here, 0.1)) == pytest.approx((np.sqrt(lam) + r) ** 2 / (2 * lam * 0.1), rel=1e-12)
