"""The Perceptron: the bound on its mistakes, its outputs; and SDCA: its steps, and the order of visits of both."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from samples import N, data, hinge

import jaxsvm
from jaxsvm import SMO, Perceptron


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_mistakes_of_the_perceptron_are_bounded(margin):
    """Property 18: `M <= L + r |u| sqrt(L) + r^2 |u|^2` for any u, on the samples that were mistaken; no tolerance.

    With a margin it holds for mistakes that count `1 - margin` of the hinge at least: only the plain one is tested so.
    """
    here, solver = hinge(), Perceptron(3 * N, margin=margin)

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
        a = np.asarray(jaxsvm.fit(hinge(C), SMO(tol=1e-8)).alpha)
        u2, losses = a @ Q @ a, np.maximum(0, 1 - Q @ a)
        L = (counts.sum(axis=0) * losses).sum()
        r2 = K.diagonal().max()
        assert mistakes <= L + np.sqrt(r2 * u2 * L) + r2 * u2


def test_outputs_of_the_perceptron():
    """The average is the mean of all iterates; the random one is one of them."""
    here, iterates = hinge(), []
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
    here = hinge()
    fit = jaxsvm.fit(here, Perceptron(2 * N))
    w = data()[1] * np.asarray(fit.dual_coef)
    s = np.asarray(here.matvec(w))

    def primal(t):
        return t * t * (w @ s) / 2 + (np.asarray(here.upper) * np.maximum(0, 1 - t * s)).sum()

    assert primal(1.0) == pytest.approx(float(fit.certificate.primal), rel=1e-9)
    assert primal(1.0) <= min(primal(t) for t in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0))


@pytest.mark.parametrize("order", ["permuted", "random", "pairs"])
def test_sdca_raises_the_dual_and_stays_in_the_box(order):
    """Property 17: D does not fall, `0 <= a <= U`, and `s = Qa` up to rounding; of the pairs of SMO too."""
    solver = SMO() if order == "pairs" else jaxsvm.SDCA(order=order)
    here = hinge(bias="free" if order == "pairs" else "none")

    @jax.jit
    def run(key):
        return lax.scan(
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
    moved = (np.diff(np.vstack([np.zeros(N), a]), axis=0) != 0).any(axis=1).sum()
    assert int(state.counters.toward) == int(moved) or order == "pairs"


@pytest.mark.parametrize("solver", [jaxsvm.SDCA(), jaxsvm.Perceptron(10)], ids=["sdca", "perceptron"])
def test_an_epoch_visits_everyone_present_once(solver):
    """Absent samples, as in a fold or a pair of classes, take no step."""
    present = np.flatnonzero(np.arange(N) % 4 == 0)
    here = hinge().weighted(np.isin(np.arange(N), present) * 1.0)
    start, m = solver.init(here, jax.random.key(1)).visits, len(present)

    @functools.partial(jax.jit, static_argnames="order")
    def visited(visits, order):
        return lax.scan(lambda visits, t: visits.following(t, order), visits, jnp.arange(8 * m))[1].reshape(8, m)

    epochs, draws = np.asarray(visited(start, "permuted")), np.asarray(visited(start, "random"))
    assert (np.sort(epochs) == present).all()
    assert len({tuple(epoch) for epoch in epochs}) == 8
    assert set(draws.ravel().tolist()) == set(present.tolist())
