"""Linear algebra without SVM nouns: conjugate gradients, Nystroem features, padded factors, size classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsvm.numerics.linear import (
    BLOCK,
    LAPACK_SIZE,
    conjugate_gradients,
    deflation,
    evenly_among,
    factored,
    features_in_blocks,
    identity,
    inverse_root,
    nystroem_features,
    padded_factor,
    woodbury,
)
from jaxsvm.numerics.measured import MEASURED
from jaxsvm.numerics.precision import count, places_first, sums
from jaxsvm.numerics.sizes import in_smallest, size_classes
from jaxsvm.runtime.loops import once


def positive(n=40, rank=60, seed=0):
    F = np.random.default_rng(seed).normal(size=(n, rank))
    return F, F @ F.T


def definite(q, lanes=()):
    F = np.random.default_rng(0).normal(size=(*lanes, q, q + 5))
    return F @ np.swapaxes(F, -1, -2)


def test_conjugate_gradients_solve_and_tell_a_negative_curvature():
    _, K = positive()
    b = np.arange(40.0)

    @jax.jit
    def solve(A):
        diagonal, x = jnp.abs(jnp.diagonal(A)), jnp.ones(40)
        return conjugate_gradients(
            lambda v: A @ v, lambda r: r / diagonal, x, b - A @ x, 500, lambda at: (at.r @ at.r > 1e-18) & at.definite
        )

    found = solve(jnp.asarray(K))
    np.testing.assert_allclose(K @ found.x, b, atol=1e-8)
    assert found.definite and found.steps < 500
    assert not solve(jnp.asarray(K - 50 * np.eye(40))).definite
    assert np.isnan(solve(jnp.full((40, 40), jnp.nan)).r).all()
    solution = conjugate_gradients(lambda v: v, lambda r: r, jnp.ones(2), jnp.zeros(2), 3, lambda at: at.definite)
    np.testing.assert_array_equal(solution.x, 1)  # stays where it is, however many steps follow


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_nystroem_features_of_all_landmarks_are_exact(scale):
    K = scale * positive(40, 30)[1]
    everything = evenly_among(jnp.ones(40, bool), 128)
    np.testing.assert_array_equal(everything, np.arange(40))
    Z = nystroem_features(jnp.asarray(K), everything)
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-6 * scale)
    W = inverse_root(jnp.asarray(K), 1e-14)
    np.testing.assert_allclose(K @ W @ (K @ W).T, K, atol=1e-8 * scale)
    assert (np.diag(K) - (np.asarray(Z) ** 2).sum(axis=1) <= 1e-6 * scale).all()
    np.testing.assert_allclose(inverse_root(jnp.diag(jnp.asarray([1.0, 1e-3])), 1e-2), np.diag([1.0, 0.0]))


def test_features_in_blocks_leave_the_trace_that_they_say():
    x = np.random.default_rng(0).normal(size=(200, 3))
    K = np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=2))
    for enough, blocks in ((0.0, 2), (50.0, 1)):
        Z, taken, trace = features_in_blocks(
            lambda i: jnp.asarray(K)[i], jnp.ones(200), 128, (enough, np.inf), 1e-12, jax.random.key(0)
        )
        left = K - np.asarray(Z) @ np.asarray(Z).T
        assert taken == blocks * BLOCK
        assert np.trace(left) == pytest.approx(float(trace), rel=1e-8)
        assert np.linalg.eigvalsh(left)[0] > -1e-10 and float(trace) < (50.0, 1.0)[blocks - 1]


def test_landmarks_stand_evenly_among_the_members():
    members = np.zeros(1000, bool)
    members[::5] = True
    index = np.asarray(evenly_among(jnp.asarray(members), 50))
    assert members[index].all() and len(set(index.tolist())) == 50 and set(np.diff(index)) == {20}
    few = np.asarray(evenly_among(jnp.asarray(np.arange(1000) == 3), 50))
    assert (few == 3).all()


def test_woodbury_is_the_inverse():
    F, K = positive()
    D, r = np.linspace(0.1, 2, 40), np.arange(40.0)
    found = woodbury(jnp.asarray(F), jnp.asarray(D))(jnp.asarray(r))
    np.testing.assert_allclose((K + np.diag(D)) @ found, r, atol=1e-8)


def test_deflation_takes_what_features_do_not_know_for_their_least_eigenvalue():
    F, K = positive(40, 10)
    r, rest = F @ np.arange(10.0), np.linalg.qr(F, mode="complete")[0][:, 20]
    solve = deflation(jnp.asarray(np.concatenate([F, np.zeros((40, 1))], axis=1)))  # one more says nothing
    found = solve(jnp.asarray(r))
    level = (K @ found)[0] / (r - found)[0]
    assert level == pytest.approx(np.linalg.eigvalsh(F.T @ F)[0] + 1, rel=0.1)
    np.testing.assert_allclose((level * np.eye(40) + K) @ found / level, r, atol=1e-8)
    np.testing.assert_allclose(solve(jnp.asarray(rest)), rest, atol=1e-12)
    for small in (0.0, 1e-10):
        np.testing.assert_allclose(deflation(jnp.asarray(small * F))(jnp.asarray(r)), r)


def test_a_padded_factor_is_the_identity_where_nothing_is():
    _, K = positive()
    L = padded_factor(jnp.asarray(K), jnp.arange(40) < 25).L
    np.testing.assert_allclose(L @ L.T, np.block([[K[:25, :25], np.zeros((25, 15))], [np.zeros((15, 25)), np.eye(15)]]))


@pytest.mark.parametrize(
    ("limit", "sizes"), [(1, (1,)), (256, (256,)), (257, (256, 257)), (2000, (256, 512, 1024, 2000))]
)
def test_size_classes(limit, sizes):
    assert size_classes(limit) == sizes
    assert MEASURED.smallest_system == 256

    def taken(count, allowed=True):
        return int(in_smallest(sizes, jnp.asarray(count), lambda size, _: jnp.asarray(size), jnp.asarray(-1), allowed))

    assert [taken(size) for size in sizes] == list(sizes)
    assert taken(0) == sizes[0] and taken(limit + 1) == -1 and taken(1, jnp.asarray(False)) == -1


@pytest.mark.parametrize("n", [1, 63, 64, 65, 2048, 2049, 4095, 4096])
def test_masks_and_sums_are_those_of_numpy(n: int) -> None:
    """Each size has its own way: products of matrices, a library's sums, sorting, running sums."""
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(2, n))
    np.testing.assert_allclose(sums(jnp.asarray(a), jnp.asarray(b)), [a.sum(), b.sum()], rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(sums(jnp.asarray(a)), [a.sum()], rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(jax.grad(lambda v: sums(v * v, v)[0])(jnp.asarray(a)), 2 * a)
    for share in (0.0, 1 / n, 0.5, 1.0):
        mask = rng.random(n) < share
        assert count(mask) == mask.sum()
        np.testing.assert_array_equal(places_first(jnp.asarray(mask))[: mask.sum()], np.flatnonzero(mask))


def test_what_is_computed_once_if_at_all_stays_inside_its_condition():
    """XLA would compute in front of the loop whatever the loop does not change, condition or not."""

    def maybe(condition, K, value):
        return once(condition, lambda value: value + jnp.sort(K @ K, axis=0), value)

    K, conditions = jnp.ones((64, 64)), jnp.array([False, False])
    lanes = jax.jit(jax.vmap(maybe, (0, None, None)))
    text = lanes.lower(conditions, K, K).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert "while(" in entry and " sort(" in text
    assert " sort(" not in entry and "dot(" not in entry and "matmul" not in entry
    np.testing.assert_array_equal(lanes(jnp.array([False, True]), K, K)[:, 0, 0], [1, 65])


# --- factors and solves without LAPACK: in lanes, where matrices are singular, and what they lower to


@pytest.mark.parametrize("q", [1, 25, 48, 70, 96])
def test_factors_and_solves_agree_with_numpy(q):
    A, b = definite(q, (3,)), np.random.default_rng(1).normal(size=(3, q, 2))
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
    A = definite(q)
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
    A = definite(64)
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
