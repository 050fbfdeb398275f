"""Factors and solves without LAPACK: against NumPy, in lanes, where matrices are singular, and what they lower to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsvm.numerics.linear import LAPACK_SIZE, factored, identity, inverse_root


def positive(q, lanes=(), seed=0):
    F = np.random.default_rng(seed).normal(size=(*lanes, q, q + 5))
    return F @ np.swapaxes(F, -1, -2)


@pytest.mark.parametrize("q", [1, 25, 48, 70, 96])
def test_factors_and_solves_agree_with_numpy(q):
    A, b = positive(q, (3,)), np.random.default_rng(1).normal(size=(3, q, 2))
    factor = jax.jit(jax.vmap(factored))(A)
    np.testing.assert_allclose(factor.L[:, :q, :q], np.linalg.cholesky(A), atol=1e-9)
    solved = jax.jit(jax.vmap(lambda F, b: (F.solve(b), F.solve(b[:, 0]), F.lower_solve(b))))(factor, b)
    expected = np.linalg.solve(A, b)
    np.testing.assert_allclose(solved[0], expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(solved[1], expected[..., 0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(solved[2], np.linalg.solve(np.linalg.cholesky(A), b), rtol=1e-6, atol=1e-8)


def test_an_ill_conditioned_matrix_is_solved_backward_stably():
    q = 70
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(q, q)))[0]
    A, b = (Q * np.logspace(-12, 0, q)) @ Q.T, Q @ np.ones(q)
    x = np.asarray(factored(jnp.asarray((A + A.T) / 2)).solve(jnp.asarray(b)))
    assert np.abs(A @ x - b).max() < 1e-13 * np.abs(x).max()


@pytest.mark.parametrize("q", [25, 70])
def test_what_is_not_definite_is_not_finite(q):
    A = positive(q)
    A[q // 2, q // 2] = -1.0
    assert not np.isfinite(factored(jnp.asarray(A)).L).all()


@pytest.mark.parametrize("q", [25, 70])
def test_variables_that_others_explain_are_left_out(q):
    F = np.random.default_rng(0).normal(size=(q, 9))
    A = F @ F.T
    b = A @ np.random.default_rng(1).normal(size=q)
    factor = factored(jnp.asarray(A), 1e-9)
    x = np.asarray(factor.solve(jnp.asarray(b)))
    assert (x != 0).sum() == 9
    np.testing.assert_allclose(A @ x, b, atol=1e-8)


def test_a_factor_within_a_larger_one_is_its_first_block():
    A = positive(64)
    L = np.asarray(factored(jnp.asarray(A)).within(identity(130, A.dtype)).L)
    np.testing.assert_allclose(L[:64, :64], np.linalg.cholesky(A), atol=1e-9)
    np.testing.assert_array_equal(L[64:, 64:], np.eye(96))


def test_large_matrices_are_left_to_lapack_alone_but_not_in_lanes():
    shape = jax.ShapeDtypeStruct((2, LAPACK_SIZE, LAPACK_SIZE), jnp.float64)
    assert "potrf" in jax.jit(lambda A: factored(A[0])).lower(shape).as_text()
    assert "potrf" not in jax.jit(jax.vmap(factored)).lower(shape).as_text()
    within = jax.jit(jax.vmap(lambda A: jax.lax.fori_loop(0, 2, lambda _, A: factored(A).L, A)))
    assert "potrf" not in within.lower(shape).as_text()


def test_the_derivative_of_an_inverse_root_where_the_matrix_is_singular():
    """What users see of it, `K(x, z) W W' K(z, x)`, is smooth where two landmarks are the same."""
    x = np.random.default_rng(0).normal(size=(12, 2))
    z = np.concatenate([x[:5], x[:1]])

    def value(gamma):
        def kernel(a, b):
            return jnp.exp(-gamma * ((a[:, None] - b) ** 2).sum(-1))

        rows = kernel(x, z) @ inverse_root(kernel(z, z), 1e-12)
        return jnp.sin(rows @ rows.T).sum()

    difference = (value(0.5 + 1e-5) - value(0.5 - 1e-5)) / 2e-5
    assert float(jax.grad(value)(0.5)) == pytest.approx(float(difference), rel=1e-6)
