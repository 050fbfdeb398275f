"""CSR points against SciPy, and what counts as points at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse as jax_sparse

from jaxsvm.errors import InputError
from jaxsvm.gram.build import gram
from jaxsvm.kernels import RBF
from jaxsvm.points.rows import CSR, as_points, dense_rows


@pytest.fixture(scope="module")
def matrix():
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(12, 7)) * (rng.random((12, 7)) < 0.3)
    dense[[0, 5, 11]] = 0
    dense[3] = rng.normal(size=7)
    return scipy.sparse.csr_matrix(dense)


def test_rows_are_those_of_scipy(matrix):
    points = CSR.from_scipy(matrix)
    assert points.shape == (12, 7) and len(points) == 12 and points.ndim == 2 and points.dtype == jnp.float64
    assert points.width == 7 and points.indices.dtype == jnp.int32 and points.indptr.dtype == jnp.int32
    index = jnp.array([3, 0, 11, 3, 7, 5])
    np.testing.assert_array_equal(points.rows(index), matrix.toarray()[np.asarray(index)])
    np.testing.assert_array_equal(jax.jit(CSR.rows)(points, index), matrix.toarray()[np.asarray(index)])
    np.testing.assert_array_equal(dense_rows(points, index), dense_rows(jnp.asarray(matrix.toarray()), index))
    assert len(jax.tree.leaves(points)) == 3


def test_every_sparse_format_and_both_dtypes(matrix):
    for form in ("csr", "csc", "coo", "lil", "dok", "bsr"):
        points = as_points(matrix.asformat(form))
        np.testing.assert_array_equal(points.rows(jnp.arange(12)), matrix.toarray())
    narrow = as_points(scipy.sparse.csr_array(matrix), np.float32)
    assert narrow.dtype == jnp.float32
    np.testing.assert_array_equal(narrow.rows(jnp.arange(12)), matrix.toarray().astype(np.float32))
    assert as_points(matrix.astype(np.float32)).dtype == jnp.float32
    assert as_points((matrix != 0).astype(np.int8)).dtype == jnp.zeros(()).dtype


def test_duplicates_are_summed_and_the_callers_matrix_is_left_alone():
    given = scipy.sparse.csr_matrix((np.array([1.0, 2.0, 5.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 3))
    points = as_points(given)
    np.testing.assert_array_equal(points.rows(jnp.arange(2)), [[0, 3, 0], [5, 0, 0]])
    assert given.nnz == 3  # still with its duplicates
    np.testing.assert_array_equal(given.data, [1, 2, 5])


def test_unsorted_columns():
    given = scipy.sparse.csr_matrix((np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1]), np.array([0, 3])), shape=(1, 3))
    np.testing.assert_array_equal(as_points(given).rows(jnp.array([0])), [[2, 3, 1]])


def test_points_copy_what_the_caller_may_change_later(matrix):
    """JAX shares aligned NumPy memory on a CPU: every alignment is tried."""
    given = matrix.copy()
    points = as_points(given)
    given.data[:] = 99
    np.testing.assert_array_equal(points.rows(jnp.arange(12)), matrix.toarray())
    for start in range(8):
        dense = np.zeros(8 + 64)[start : start + 64].reshape(8, 8)
        points = as_points(dense)
        dense[:] = 99
        assert not np.asarray(points).any()


def test_no_entries_at_all():
    points = as_points(scipy.sparse.csr_matrix((3, 4)))
    np.testing.assert_array_equal(points.rows(jnp.arange(3)), np.zeros((3, 4)))
    np.testing.assert_array_equal(points.take(np.array([2, 0])).rows(jnp.arange(2)), np.zeros((2, 4)))


@pytest.mark.thorough
def test_take_keeps_rows_sparse(matrix):
    points = as_points(matrix)
    for index in ([3, 0, 3, 10], [5, 11], [7]):
        some = points.take(np.array(index))
        assert isinstance(some, CSR) and some.shape == (len(index), 7)
        np.testing.assert_array_equal(some.rows(jnp.arange(len(index))), matrix.toarray()[index])


def test_bcsr_and_csr_pass(matrix):
    points = as_points(matrix)
    assert as_points(points) is points
    assert as_points(points, jnp.float32).dtype == jnp.float32
    bcsr = jax_sparse.BCSR.from_scipy_sparse(matrix)
    np.testing.assert_array_equal(as_points(bcsr).rows(jnp.arange(12)), matrix.toarray())
    inside = jax.jit(lambda points: as_points(points).rows(jnp.arange(2)))(points)
    np.testing.assert_array_equal(inside, matrix.toarray()[:2])


def test_rows_are_differentiable_in_the_entries(matrix):
    points = as_points(matrix)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(12, 7)))

    def value(data):
        changed = CSR(data, points.indices, points.indptr, points.d, points.width)
        return (changed.rows(jnp.arange(12)) * weights).sum()

    rows, columns = matrix.nonzero()
    np.testing.assert_allclose(jax.grad(value)(points.data), weights[rows, columns])


# --- dense points


def test_dense_points_keep_floats_and_turn_integers_into_floats():
    for given, dtype in (
        ([[1, 2], [3, 4]], jnp.zeros(()).dtype),
        ([[1.5, 2], [3, 4]], jnp.zeros(()).dtype),
        (np.ones((2, 2), np.int8), jnp.zeros(()).dtype),
        (np.ones((2, 2), bool), jnp.zeros(()).dtype),
        (np.ones((2, 2), np.float32), jnp.float32),
        (np.ones((2, 2), np.longdouble), jnp.float64),
        (jnp.ones((2, 2), jnp.float64), jnp.float64),
        (np.asfortranarray(np.ones((2, 2))), jnp.float64),
    ):
        points = as_points(given)
        assert isinstance(points, jax.Array) and points.dtype == dtype and points.shape == (2, 2)
    assert as_points(np.ones((2, 2)), np.float32).dtype == jnp.float32
    assert jax.jit(as_points)(jnp.array([[jnp.nan]])).shape == (1, 1)  # values are unknown: no refusal


SHORT = {"float16": jnp.float16, "bfloat16": jnp.bfloat16, "8 bits": jnp.float8_e5m2}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHORT)
def test_short_floats_are_promoted_to_float32(name, matrix):
    """One rule for points, kernel values and a dtype that is named."""
    short, values = SHORT[name], np.array([[1.0, 2.0], [0.5, 0.0]])
    rows = as_points(matrix)
    given = [values.astype(short), jnp.asarray(values, short), jax_sparse.BCSR.fromdense(jnp.asarray(values, short))]
    for x in [*given, CSR(rows.data.astype(short), rows.indices, rows.indptr, rows.d, rows.width)]:
        assert as_points(x).dtype == jnp.float32
    for x in given:
        points = as_points(x)
        np.testing.assert_array_equal(points.rows(jnp.arange(2)) if isinstance(points, CSR) else points, values)
    assert as_points(values, short).dtype == jnp.float32
    assert jax.eval_shape(as_points, jax.ShapeDtypeStruct((2, 2), short)).dtype == jnp.float32
    for x in (values.astype(short), values):
        for options in ({"dtype": short}, {"dtype": short, "tile": 1}, {"dtype": short, "rank": 2}):
            assert gram(RBF(0.5), x, **options).dtype == jnp.float32
    nothing = values.copy()
    nothing[0, 1] = np.nan
    for array in (nothing.astype(short), jnp.asarray(nothing, short)):
        with pytest.raises(InputError, match="NaN"):
            as_points(array)


class Huge:
    """A sparse matrix too large for int32, without the memory."""

    dtype = np.dtype(float)

    def __init__(self, columns, nnz):
        self.shape, self.nnz = (2, columns), nnz

    def tocsr(self):
        raise AssertionError("refused before it is converted")


@pytest.mark.parametrize(("columns", "nnz", "said"), [(2**31, 1, "columns"), (5, 2**31, "entries")])
def test_what_int32_cannot_count_is_refused_before_it_wraps(columns, nnz, said):
    with pytest.raises(InputError, match=f"^x has {2**31} {said}"):
        as_points(Huge(columns, nnz))


BAD = {
    "one axis": ([1.0, 2.0], "shape"),
    "no axis": (3.0, "shape"),
    "three axes": (np.ones((2, 2, 2)), "shape"),
    "no rows": (np.ones((0, 3)), "empty"),
    "no columns": (np.ones((3, 0)), "empty"),
    "nan": ([[1.0, np.nan]], "NaN"),
    "infinity": (np.array([[1.0], [np.inf]]), "infinite"),
    "jax nan": (jnp.array([[jnp.nan]]), "NaN"),
    "words": ([["a", "b"]], "dtype"),
    "objects": (np.array([[1, None]], object), "dtype"),
    "complex": (np.ones((2, 2), complex), "dtype"),
    "ragged": ([[1.0, 2.0], [3.0]], "rows"),
    "nothing": (None, "dtype"),
    "sparse nan": (scipy.sparse.csr_matrix([[0.0, np.nan]]), "NaN"),
    "sparse complex": (scipy.sparse.csr_matrix([[0.0, 1j]]), "dtype"),
    "sparse one axis": (scipy.sparse.csr_array(np.eye(3))[0], "shape"),
    "bcsr of three axes": (jax_sparse.BCSR.fromdense(jnp.ones((2, 3, 4)), n_batch=1), "shape"),
    "bcsr complex": (jax_sparse.BCSR.fromdense(jnp.ones((2, 3), complex)), "dtype"),
    "bcsr nan": (jax_sparse.BCSR.fromdense(jnp.full((2, 3), jnp.nan)), "NaN"),
    "bcoo": (jax_sparse.BCOO.fromdense(jnp.ones((2, 3))), "BCOO"),
    "sparse empty": (scipy.sparse.csr_matrix((0, 3)), "empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_points_are_refused_by_name(name):
    given, said = BAD[name]
    for argument in ("x", "x_new"):
        with pytest.raises(InputError, match=rf"^{argument} .*{said}"):
            as_points(given, None, argument)


@pytest.mark.parametrize("given", [np.array([[1e300]]), scipy.sparse.csr_matrix([[1e300]])])
def test_a_value_too_large_for_the_dtype_is_refused(given):
    with pytest.raises(InputError, match=r"^x has values up to 1e\+300 in size"):
        as_points(given, np.float32)


# --- sums over samples


def test_a_sum_over_many_rows_keeps_float32s_digits():
    """Rows of one sign make one long sum: of 300,000 positive terms it was off by 1e-4, and a certificate with it."""
    n = 60_000
    x = np.abs(np.random.default_rng(2).normal(size=(n, 1))).astype(np.float32)
    points = as_points(scipy.sparse.csr_matrix(x))
    v = np.ones(n, np.float32)
    want = x.astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(points.transposed_dot(v), want, rtol=5e-7)
    np.testing.assert_allclose(jax.jit(CSR.transposed_dot)(points, np.stack([v, -v], 1)), [[want[0], -want[0]]], 5e-7)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(1, 3), (64, 3), (65, 2), (1000, 5)])
def test_products_in_blocks_are_those_of_scipy(shape):
    n, d = shape
    matrix = scipy.sparse.random(n, d, 0.4, "csr", random_state=3)
    points = as_points(matrix)
    random = np.random.default_rng(4)
    v, w, lanes = random.normal(size=n), random.normal(size=d), random.normal(size=(3, n))
    np.testing.assert_allclose(points.transposed_dot(v), matrix.T @ v, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(points.transposed_dot(lanes.T), matrix.T @ lanes.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(jax.vmap(points.transposed_dot)(lanes), lanes @ matrix, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(jax.grad(lambda v: points.transposed_dot(v) @ w)(v), matrix @ w, rtol=1e-12, atol=1e-12)


def test_entries_of_a_bcsr_that_come_twice_are_summed_as_scipys_are():
    twice = jax_sparse.BCSR((jnp.ones(3), jnp.array([1, 1, 0]), jnp.array([0, 2, 3])), shape=(2, 3))
    np.testing.assert_array_equal(as_points(twice).rows(jnp.arange(2)), [[0, 2, 0], [1, 0, 0]])
