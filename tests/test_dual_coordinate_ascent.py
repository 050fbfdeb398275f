"""Dual coordinate ascent: what a step does, the order of the visits, what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from samples import N, hinge

import jaxsvm
from jaxsvm import SDCA


@pytest.mark.parametrize("order", ["permuted", "random"])
def test_sdca_raises_the_dual_and_stays_in_the_box(order):
    """Property 17: D does not fall, `0 <= a <= U`, and `s = Qa` up to rounding."""
    solver, here = SDCA(order=order), hinge()

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


@pytest.mark.parametrize("solver", [SDCA(), jaxsvm.Perceptron(10)], ids=["sdca", "perceptron"])
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


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: SDCA(order="sorted"), "order"),
        (lambda: jaxsvm.fit(hinge(bias="free"), SDCA()), "free bias"),
    ],
)
def test_refuses(make, word):
    with pytest.raises(jaxsvm.InputError, match=word):
        make()
