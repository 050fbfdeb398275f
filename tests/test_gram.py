"""Gram operators against NumPy in float64: values, products, expansions, derivatives and memory, low rank, refusals."""

import functools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from oracle import laplacian, rbf
from test_kernels import TRUTH

from jaxsvm.errors import InputError, PrecisionWarning
from jaxsvm.gram.build import gram
from jaxsvm.gram.operators import DenseGram, LowRankGram, TiledGram, with_values
from jaxsvm.kernels import RBF, Function, Laplacian, Linear, Polynomial, Precomputed
from jaxsvm.points.rows import as_points

N, D, TILE = 23, 4, 7  # n is no multiple of the tile
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.7)
X[5] = X[4]  # a duplicate
X[9] = 0  # an empty row
NEW = RNG.normal(size=(11, D))
V = RNG.normal(size=N)
V3 = RNG.normal(size=(N, 3))
SPARSE_V = np.where(np.arange(N) % 3 == 0, V, 0)

STORAGE = {"dense": {"store": True}, "tiled": {"tile": TILE}}


def make(kernel, storage, sparse=False, dtype=np.float64, x=X):
    points = scipy.sparse.csr_matrix(x.astype(dtype)) if sparse else x.astype(dtype)
    return gram(kernel, points, **STORAGE[storage])


# --- values and products


RARER = [("laplacian", "tiled", True)] + [(name, how, True) for name in ("polynomial", "sum") for how in STORAGE]
"""Each compiles for two seconds; products and distances of sparse points are those of "linear" and of "rbf"."""
NAMES = ("rbf", "linear", "polynomial", "laplacian", "sum")
FORMS = [(name, storage, sparse) for name in NAMES for storage in STORAGE for sparse in (False, True)]


@pytest.mark.parametrize(
    ("name", "storage", "sparse"),
    [pytest.param(*form, marks=pytest.mark.slow) if form in RARER else form for form in FORMS],
)
def test_every_method_against_numpy(name, storage, sparse):
    kernel, truth = TRUTH[name]
    K = truth(X, X)
    operator = make(kernel, storage, sparse)
    assert isinstance(operator, DenseGram if storage == "dense" else TiledGram)
    assert operator.n == N and operator.dtype == jnp.float64
    close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12)

    @jax.jit
    def everything(operator, i, index):
        return (
            operator.row(i),
            operator.rows(index),
            operator.block(index, jnp.array([2, 5])),
            operator.diag(),
            operator.matvec(V),
            operator.matvec(V3),
            operator.support_matvec(SPARSE_V),
            operator.support_matvec(V),
            operator.support_matvec(jnp.zeros(N)),
        )

    index = jnp.array([22, 0, 4, 4, 9])
    got = everything(operator, jnp.int32(4), index)
    rows = np.asarray(index)
    wants = (K[4], K[rows], K[rows][:, [2, 5]], np.diag(K), K @ V, K @ V3, K @ SPARSE_V, K @ V, np.zeros(N))
    for value, want in zip(got, wants, strict=True):
        assert value.shape == want.shape and value.dtype == jnp.float64
        close(value, want)


def test_a_large_sparse_basis_stays_a_small_program():
    """Tiles of basis functions are a loop: unrolled, 100,000 support vectors would compile for minutes."""

    def size(q):
        matrix = scipy.sparse.random(q, 3, 0.5, "csr", random_state=0)
        basis, _ = gram(RBF(0.4), matrix, tile=8).expansion(jnp.zeros(q))
        return len(jax.jit(type(basis).__call__).lower(basis, jnp.ones((2, 3))).as_text())

    assert size(9000) < 1.5 * size(3000)


@pytest.mark.parametrize("name", ["ard", "nested"])
def test_one_row_of_composed_stationary_kernels(name):
    """A row has a path of its own, which uses stored squared norms."""
    kernel, truth = TRUTH[name]
    operator = gram(kernel, X + 100, tile=TILE).with_squares()
    assert operator.squares is not None
    np.testing.assert_allclose(jax.jit(lambda o, i: o.row(i))(operator, 4), truth(X, X)[4], rtol=1e-11)


def test_the_derivative_of_a_row_includes_its_stored_norms():
    def value(x, tile):
        return gram(RBF(0.4), x, tile=tile).row(jnp.int32(4)) @ V

    np.testing.assert_allclose(jax.grad(value)(jnp.asarray(X), TILE), jax.grad(value)(jnp.asarray(X), None), atol=1e-12)


@pytest.mark.parametrize(
    "tile", [pytest.param(1, marks=pytest.mark.thorough), 7, 23, pytest.param(100, marks=pytest.mark.thorough)]
)
def test_any_tile_and_one_point(tile):
    x = jnp.asarray(X)
    np.testing.assert_allclose(gram(RBF(0.4), x, tile=tile).matvec(V), rbf(X, X, 0.4) @ V, rtol=1e-11)
    for one in (gram(RBF(0.4), x[:1], tile=tile), gram(RBF(0.4), x[:1]), gram(RBF(0.4), x[:1], rank=tile)):
        assert one.n == 1
        np.testing.assert_allclose(one.row(0), [1])
        np.testing.assert_allclose(one.matvec(jnp.ones(1)), [1])
        np.testing.assert_allclose(one.support_matvec(jnp.ones(1)), [1])
        np.testing.assert_allclose(one.diag(), [1])


def test_memory_budget_decides():
    def stored(**options):
        operator = gram(RBF(0.4), X, **options)
        return isinstance(with_values(operator), DenseGram)

    assert isinstance(gram(RBF(0.4), X), TiledGram)  # nothing is computed yet
    assert isinstance(gram(RBF(0.4), X, store=True, memory=0), DenseGram)
    assert stored(memory=8 * N * N)
    assert not stored(memory=8 * N * N - 1)
    assert stored(memory=8 * N * N - 1, dtype=np.float32)
    assert not stored(tile=TILE, memory=2**40)
    assert not stored(store=False)
    np.testing.assert_array_equal(with_values(gram(RBF(0.4), X)).K, gram(RBF(0.4), X, store=True).K)
    with pytest.raises(InputError, match="store is True"):
        gram(RBF(0.4), X, tile=TILE, store=True)


@pytest.mark.parametrize("storage", STORAGE)
def test_float32_values_with_float64_vectors(storage):
    """The product is exact for the rounded values: it is accumulated in float64."""
    operator = gram(RBF(0.4), X, dtype=np.float32, **STORAGE[storage])
    assert operator.dtype == jnp.float32 and operator.x.dtype == jnp.float64
    K = np.asarray(operator.rows(jnp.arange(N)), np.float64)
    for product, want in (
        (operator.matvec(jnp.asarray(V)), K @ V),
        (operator.matvec(jnp.asarray(V3)), K @ V3),
        (operator.support_matvec(jnp.asarray(SPARSE_V)), K @ SPARSE_V),
    ):
        assert product.dtype == jnp.float64
        # The diagonal of rows on demand may round otherwise in another program: one unit of float32.
        np.testing.assert_allclose(product, want, rtol=1e-13 if storage == "dense" else 1e-6)


# --- hard data


def test_shift_and_points_belong_together():
    for operator in (gram(RBF(0.4), X), gram(RBF(0.4), X, tile=TILE), gram(RBF(0.4), X, rank=5)):
        np.testing.assert_allclose(operator.x + operator.shift, X, atol=1e-14)
        np.testing.assert_allclose(operator.shift, X.mean(axis=0), atol=1e-14)
    assert not np.asarray(gram(Linear(), X).shift).any()


@pytest.mark.parametrize("kernel", [RBF(2e-3), Polynomial(2, 0.01, 1.0)])
def test_half_of_a_matrix_is_mirrored_where_features_are_many(kernel):
    """1,100 points are no multiple of a block; derivatives pass through both halves."""
    x = np.random.default_rng(3).normal(size=(1100, 256))
    x[1090] = x[3]
    operator, weights = gram(kernel, x, store=True), jnp.cos(jnp.arange(1100.0))
    assert (np.asarray(operator.K) == np.asarray(operator.K).T).all()
    np.testing.assert_allclose(operator.K, kernel.matrix(x, x), rtol=1e-10, atol=1e-12)
    if isinstance(kernel, RBF):

        def value(gamma, tile):
            return weights @ gram(RBF(gamma), x, tile, store=not tile or None).matvec(weights)

        np.testing.assert_allclose(jax.grad(value)(2e-3, None), jax.grad(value)(2e-3, 1100), rtol=1e-9)


ARD = np.array([0.3, 0.02, 1.1, 0.5, 0.9, 0.1], np.float32)
HARD_KERNELS = {
    "rbf": (RBF(0.5), functools.partial(rbf, gamma=0.5)),
    "ard": (RBF(ARD), lambda x, z: np.exp(-((np.asarray(x, float)[:, None] - z) ** 2 * ARD.astype(float)).sum(-1))),
    "laplacian": (Laplacian(0.5), functools.partial(laplacian, gamma=0.5)),
    "composed": (
        2.0 * (RBF(0.5) + Laplacian(0.5)) * RBF(0.25),
        lambda x, z: 2 * (rbf(x, z, 0.5) + laplacian(x, z, 0.5)) * rbf(x, z, 0.25),
    ),
    "with a constant": (
        RBF(0.5) + Function(lambda x, z: 0.25 + 0 * x[0] * z[0]),
        lambda x, z: rbf(x, z, 0.5) + 0.25,
    ),
}


def near_duplicates(scale, offset, dtype, d=6):
    rng = np.random.default_rng(6)
    x = offset + scale * rng.normal(size=(20, d))
    return np.concatenate([x, x + rng.normal(size=(20, d)) / d]).astype(dtype)


PLACES = [(1e3, 0, np.float32), (1, 2e3, np.float32), (1e3, 1e5, np.float64), (1, 1e8, np.float64)]


@jax.jit
def rows_block_and_prediction(operator, x):
    index = jnp.arange(operator.n)
    basis, _ = operator.expansion(jnp.zeros(operator.n))
    return operator.rows(index), operator.block(index, index), basis(x), operator.diag()


@pytest.mark.filterwarnings("ignore::jaxsvm.errors.PrecisionWarning")
@pytest.mark.parametrize(
    ("kernel", "sparse"),
    [
        *((name, False) for name in HARD_KERNELS),
        ("rbf", True),
        pytest.param("with a constant", True, marks=pytest.mark.slow),
    ],
)
def test_near_duplicates_keep_their_digits_wherever_they_lie(kernel, sparse):
    """Entries were off by 0.009 at a scale of 1e2 and 0.38 at 1e3, and CSR points were not centred."""
    kernel, truth = HARD_KERNELS[kernel]
    for scale, offset, dtype in PLACES:
        x = near_duplicates(scale, offset, dtype)
        want = truth(x, x)
        for options in STORAGE.values():
            operator = gram(kernel, scipy.sparse.csr_matrix(x) if sparse else x, **options)
            rows, block, prediction, diagonal = rows_block_and_prediction(operator, x)
            for values in (rows, block, prediction):
                np.testing.assert_allclose(values, want, atol=4e-6 if dtype == np.float32 else 1e-14)
            np.testing.assert_array_equal(np.diag(rows), diagonal)
            np.testing.assert_array_equal(np.diag(block), diagonal)


@pytest.mark.filterwarnings("ignore::jaxsvm.errors.PrecisionWarning")
@pytest.mark.parametrize("storage", STORAGE)
def test_the_diagonal_is_one_in_every_product(storage):
    """In tiles K_ii was 0.37 at a scale of 1e3."""
    for scale in (1, 1e3):
        x = near_duplicates(scale, 0, np.float32)
        operator = gram(RBF(ARD), x, **STORAGE[storage])
        index = jnp.arange(len(x))
        for values in (operator.rows(index), operator.block(index, index), operator.matvec(jnp.eye(40, dtype=x.dtype))):
            assert (np.diag(values) == 1).all()
        assert operator.row(3)[3] == 1


@pytest.mark.parametrize("storage", STORAGE)
def test_a_gram_made_under_tracing_is_worth_as_much(storage):
    """Where the bound is not known before the program runs, the program looks; lanes of `vmap` look together."""
    x = jnp.asarray(near_duplicates(1e3, 0, np.float32))
    gammas = jnp.asarray([0.5, 0.1], jnp.float32)

    def values(gamma, x):
        return gram(RBF(gamma), x, **STORAGE[storage]).rows(jnp.arange(40))

    for k, gamma in enumerate(gammas):
        want = rbf(x, x, float(gamma))
        np.testing.assert_allclose(jax.jit(values)(gamma, x), want, atol=1e-6)
        np.testing.assert_allclose(jax.vmap(values, (0, None))(gammas, x)[k], want, atol=1e-6)
    assert "cond[" in str(jax.make_jaxpr(jax.vmap(values, (0, None)))(gammas, x))  # no choice between two products


@pytest.mark.parametrize("kernel", ["rbf", "ard", "laplacian"])
def test_derivatives_of_near_duplicates(kernel):
    """Against the same in float64 near the origin."""
    kernel, _ = HARD_KERNELS[kernel]
    kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), kernel)
    x = jnp.asarray(near_duplicates(4, 4096, np.float32))
    weights = jnp.asarray(np.random.default_rng(7).normal(size=(40, 40)))

    def value(kernel, x, tile):
        return (gram(kernel, x, tile=tile).rows(jnp.arange(40)) * weights.astype(x.dtype)).sum()

    exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (kernel, x - 4096))
    slopes = jax.jit(jax.grad(value, argnums=(0, 1)), static_argnums=2)
    want = slopes(*exact, None)
    for tile in (None, 16):
        got = slopes(kernel, x, tile)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5 * float(jnp.abs(b).max()))


def test_standardised_data_take_the_fast_path_and_spread_data_do_not():
    rng = np.random.default_rng(8)
    for d in (2, 50, 1000):
        x = rng.normal(size=(200, d)).astype(np.float32)
        for operator in (gram(RBF(1 / d), x), gram(RBF(1 / d), x + 1, tile=64), gram(RBF(1 / d), x, rank=5)):
            basis, _ = operator.expansion(jnp.zeros(200, jnp.float32))
            assert basis.near
    assert not gram(RBF(1.0), near_duplicates(1e2, 0, np.float32)).near
    assert gram(RBF(0.01), near_duplicates(1, 1e4, np.float32)).near  # moved


def test_no_shift_that_would_move_points_against_each_other():
    x = near_duplicates(1e3, 0, np.float32)
    x[:, 1] = 3.5  # what has no spread goes to 0 whatever its mean rounds to
    for given in (x, scipy.sparse.csr_matrix(x)):
        operator = gram(RBF(0.5), given)
        np.testing.assert_array_equal(operator.shift, [0, 3.5, 0, 0, 0, 0])
    sparse = scipy.sparse.csr_matrix(np.where(np.arange(6) == 1, 0, x - x[0]))  # the first row is empty
    assert not np.asarray(gram(RBF(0.5), sparse).shift).any()


def test_points_that_their_dtype_cannot_tell_apart_are_said():
    x = np.random.default_rng(9).normal(size=(30, 3))
    with pytest.warns(PrecisionWarning, match="^x lies up to .* widths of the kernel away.*[Ss]tandardise"):
        gram(RBF(1.0), (x + 1e7).astype(np.float32))
    with pytest.warns(PrecisionWarning, match="Scaling.standardise"):
        gram(Laplacian(1.0) + RBF(0.1), scipy.sparse.csr_matrix((x + 1e7).astype(np.float32)), tile=8)
    with warnings.catch_warnings(action="error"):
        gram(RBF(1.0), x + 1e7)
        gram(RBF(1.0), (x + 2e3).astype(np.float32))
        gram(Linear(), (x + 1e7).astype(np.float32))


# --- precomputed


def test_precomputed():
    K = rbf(X, X, 0.4)
    operator = gram(Precomputed(), K, tile=TILE)
    assert isinstance(operator, DenseGram)
    np.testing.assert_array_equal(operator.K, K)
    np.testing.assert_allclose(operator.matvec(V), K @ V, rtol=1e-12)
    cross, support = rbf(NEW, X, 0.4), np.flatnonzero(SPARSE_V)
    for chosen in (None, support):
        basis, weights = operator.expansion(jnp.asarray(SPARSE_V), chosen)
        np.testing.assert_allclose(basis.apply(cross, weights, 4), cross @ SPARSE_V, rtol=1e-11)
    with pytest.raises(InputError, match="^x_new has 5 "):  # an index out of range would be clamped
        basis.apply(cross[:, :5], weights)
    assert gram(Precomputed(), K, dtype=np.float32).dtype == jnp.float32
    assert gram(Precomputed(), np.array([[2.0]])).n == 1
    rounded = K + 1e-15 * np.random.default_rng(3).normal(size=K.shape)
    assert gram(Precomputed(), rounded).n == N  # rounding is no asymmetry


# --- derivatives


@pytest.mark.parametrize(
    "kernel", [RBF(jnp.asarray(0.4)), RBF(jnp.array([0.3, 0.02, 1.1, 0.5])) + 0.5 * Polynomial(2, 0.5, 1.0)]
)
def test_tiled_derivatives_equal_dense_ones(kernel):
    """With respect to parameters, points and vector; forward and reverse; duplicates included."""
    weights = jnp.asarray(RNG.normal(size=N))

    def value(kernel, x, v, tile):
        return gram(kernel, x, tile=tile).matvec(v) @ weights

    def direct(kernel, x, v):
        return kernel.matrix(x, x) @ v @ weights

    arguments = (kernel, jnp.asarray(X), jnp.asarray(V))
    tangents = jax.tree.map(
        lambda p: jnp.cos(jnp.arange(jnp.size(p), dtype=jnp.float64)).reshape(jnp.shape(p)), arguments
    )
    want = jax.jit(jax.grad(direct, argnums=(0, 1, 2)))(*arguments)
    slope = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(tangents), strict=True))
    for tile in (None, TILE):
        function = functools.partial(value, tile=tile)
        got = jax.jit(jax.grad(function, argnums=(0, 1, 2)))(*arguments)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)
        _, forward = jax.jit(lambda a, t, f=function: jax.jvp(f, a, t))(arguments, tangents)
        np.testing.assert_allclose(forward, slope, rtol=1e-10)


def test_sparse_tiled_derivatives_equal_dense_ones():
    weights = jnp.asarray(RNG.normal(size=N))
    points = as_points(scipy.sparse.csr_matrix(X))

    def value(gamma, x, tile):
        return gram(RBF(gamma), x, tile=tile).matvec(jnp.asarray(V)) @ weights

    slope = jax.jit(jax.grad(value), static_argnums=2)
    want = slope(0.4, jnp.asarray(X), None)
    np.testing.assert_allclose(slope(0.4, points, TILE), want, rtol=1e-10)
    np.testing.assert_allclose(slope(0.4, points, None), want, rtol=1e-10)


@pytest.mark.parametrize("columns", [None, 2])
def test_tiled_derivatives_never_hold_the_matrix(columns):
    n, d, tile = 4096, 3, 64
    x = jax.ShapeDtypeStruct((n, d), jnp.float32)
    v = jax.ShapeDtypeStruct((n,) if columns is None else (n, columns), jnp.float32)
    scalar = jax.ShapeDtypeStruct((), jnp.float32)

    def value(gamma, x, v):
        return (gram(RBF(gamma), x, tile=tile).matvec(v) ** 2).sum()

    programs = {
        "forward": jax.jit(lambda g, x, v: jax.jvp(value, (g, x, v), (g, x, v))),
        "reverse": jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2))),
    }
    whole = n * n * 4
    for name, program in programs.items():
        analysis = program.lower(scalar, x, v).compile().memory_analysis()
        assert analysis.temp_size_in_bytes < whole / 8, (name, analysis.temp_size_in_bytes)
        assert analysis.temp_size_in_bytes < 8 * n * tile * 4, (name, analysis.temp_size_in_bytes)
    dense = (
        jax.jit(lambda g, x, v: gram(RBF(g), x, store=True).matvec(v)).lower(scalar, x, v).compile().memory_analysis()
    )
    assert dense.temp_size_in_bytes >= whole  # the measure sees a stored matrix


def test_sparse_products_never_hold_the_dense_points():
    n, d = 2000, 5000
    points = as_points(scipy.sparse.random(n, d, 2e-3, "csr", random_state=0, dtype=np.float32))
    operator = gram(Linear(), points, tile=16)
    program = jax.jit(lambda operator, v: operator.matvec(v))
    used = program.lower(operator, jnp.zeros(n, jnp.float32)).compile().memory_analysis().temp_size_in_bytes
    assert used < n * d * 4 / 8, used


# --- transformations


def test_support_products_under_vmap_over_vectors():
    lanes = jnp.stack([jnp.asarray(SPARSE_V), jnp.asarray(V), jnp.zeros(N)])
    operator = gram(RBF(0.4), X, tile=3)
    got = jax.jit(jax.vmap(operator.support_matvec))(lanes)
    np.testing.assert_allclose(got, np.asarray(lanes) @ rbf(X, X, 0.4), rtol=1e-10, atol=1e-12)


def test_lowers_for_every_platform_in_float32():
    x = jax.ShapeDtypeStruct((N, D), jnp.float32)
    v = jax.ShapeDtypeStruct((N,), jnp.float32)
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    points = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), as_points(scipy.sparse.csr_matrix(X), np.float32)
    )

    def everything(gamma, x, points, v):
        operators = [gram(RBF(gamma), x), gram(RBF(gamma), x, tile=TILE), gram(RBF(gamma), points, tile=TILE)]
        operators += [gram(RBF(gamma), x, rank=5), gram(RBF(gamma), x, rank=5, method="fourier")]
        index = jnp.arange(3, dtype=jnp.int32)
        return [
            (o.matvec(v), o.support_matvec(v), o.row(index[1]), o.rows(index), o.block(index, index), o.diag())
            for o in operators
        ]

    exported = jax.export.export(jax.jit(everything), platforms=["cpu", "cuda", "tpu"])(scalar, x, points, v)
    assert not re.search(r"tensor<\d+x\w*f64>", exported.mlir_module())  # scalars that only get rounded do no harm


# --- low rank


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("landmarks", ["pivoted", "random"])
def test_nystroem_of_full_rank_is_exact(landmarks, sparse):
    K = rbf(X, X, 0.4)
    operator = gram(RBF(0.4), scipy.sparse.csr_matrix(X) if sparse else X, rank=N, landmarks=landmarks)
    assert isinstance(operator, LowRankGram) and operator.n == N and operator.dtype == jnp.float64
    index = jnp.arange(N)
    for got, want in (
        (operator.rows(index), K),
        (operator.row(3), K[3]),
        (operator.block(index[:3], index[4:6]), K[:3, 4:6]),
        (operator.diag(), np.diag(K)),
        (operator.matvec(V), K @ V),
        (operator.matvec(V3), K @ V3),
        (operator.support_matvec(SPARSE_V), K @ SPARSE_V),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", ["nystroem", "fourier", "pairs"])
def test_a_low_rank_operator_is_the_kernel_of_its_features(method):
    operator = gram(RBF(0.4), X, rank=6, method=method, key=jax.random.key(3))
    Z = np.asarray(operator.Z)
    assert Z.shape == (N, 6)
    np.testing.assert_allclose(operator.matvec(V), Z @ Z.T @ V, rtol=1e-10)
    np.testing.assert_allclose(operator.diag(), (Z**2).sum(1), rtol=1e-12)
    basis, weights = operator.expansion(jnp.asarray(V))
    assert weights.shape == (6,)
    np.testing.assert_allclose(basis.apply(X, weights), Z @ Z.T @ V, rtol=1e-9)  # training points are new points too
    np.testing.assert_allclose(basis.apply(NEW, weights, 4), basis(jnp.asarray(NEW)) @ weights, rtol=1e-9)
    np.testing.assert_allclose(basis.apply(scipy.sparse.csr_matrix(NEW), weights), basis.apply(NEW, weights), rtol=1e-9)


def test_pivoted_landmarks_are_the_greedy_ones_and_distinct():
    """Against pivoted Cholesky in NumPy; where the rank is exhausted no point comes twice."""
    K = rbf(X, X, 0.4)
    rest, columns, want = np.diag(K).copy(), [], []
    for _ in range(8):
        i = int(rest.argmax())
        want.append(i)
        column = K[i] - sum(c * c[i] for c in columns)
        columns.append(column / np.sqrt(rest[i]))
        rest = rest - columns[-1] ** 2
    landmarks = np.asarray(gram(RBF(0.4), X, rank=8).features.x + X.mean(0))
    np.testing.assert_allclose(landmarks, X[want], atol=1e-12)
    exhausted = gram(Linear(), RNG.normal(size=(12, 2)), rank=9)
    assert len(np.unique(np.asarray(exhausted.features.x), axis=0)) == 9


@pytest.mark.parametrize("name", ["rbf", "ard", "laplacian", "laplacian_ard"])
def test_fourier_features_converge(name):
    """The error of r features has standard deviation at most 1 / sqrt(r): five of them, and a fall with r."""
    kernel, truth = TRUTH[name]
    K, errors = truth(X, X), []
    for rank in (100, 10_000):
        operator = gram(kernel, X, rank=rank, method="fourier", key=jax.random.key(2))
        error = np.asarray(operator.rows(jnp.arange(N))) - K
        assert np.abs(error).max() < 5 / np.sqrt(rank)
        errors.append(np.sqrt((error**2).mean()))
    assert errors[1] < errors[0] / 5, errors


def test_pairs_are_cos_and_sin_of_each_frequency():
    """By NumPy: `cos(v . (x - z)) / k` summed over k frequencies, so the diagonal is 1."""
    operator = gram(RBF(0.4), X, rank=20, method="pairs", key=jax.random.key(3))
    angles = (X[:, None] - X) @ np.asarray(operator.features.frequencies)[:, ::2]
    np.testing.assert_allclose(operator.rows(jnp.arange(N)), np.cos(angles).mean(-1), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(operator.diag(), 1.0, rtol=1e-12)


def test_the_key_decides_what_is_random():
    def features(seed, **options):
        return np.asarray(gram(RBF(0.4), X, rank=6, key=jax.random.key(seed), **options).Z)

    for options in ({"method": "fourier"}, {"landmarks": "random"}):
        np.testing.assert_array_equal(features(1, **options), features(1, **options))
        assert not np.array_equal(features(1, **options), features(2, **options))


def test_low_rank_derivatives_in_gamma():
    for options in ({"landmarks": "random"}, {"method": "fourier"}):

        def value(gamma, options=options):
            return gram(RBF(gamma), X[10:], rank=5, **options).matvec(jnp.asarray(V[10:])) @ V[10:]

        slope = (value(0.4 + 1e-5) - value(0.4 - 1e-5)) / 2e-5
        np.testing.assert_allclose(jax.grad(value)(0.4), slope, rtol=1e-6)


def test_low_rank_of_duplicates_and_equal_points_is_finite():
    for x in (np.ones((6, 2)), np.repeat(X[:3], 4, axis=0)):
        operator = gram(RBF(0.4), x, rank=6)
        np.testing.assert_allclose(operator.rows(jnp.arange(len(x))), rbf(x, x, 0.4), atol=1e-7)


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((RBF(0.4), X), {"tile": 0}, "tile is 0"),
        ((RBF(0.4), X), {"tile": 2.5}, "tile is 2.5"),
        ((RBF(0.4), X), {"tile": "auto"}, "tile is 'auto'"),
        ((RBF(0.4), X), {"rank": -3}, "rank is -3"),
        ((RBF(0.4), X), {"rank": 3, "method": "magic"}, "method is 'magic'"),
        ((RBF(0.4), X), {"rank": 3, "landmarks": "best"}, "landmarks is 'best'"),
        ((Linear(), X), {"rank": 3, "method": "fourier"}, "kernel is Linear"),
        ((RBF(0.4), X), {"dtype": np.int32}, "dtype is int32"),
        (("rbf", X), {}, "kernel is 'rbf'"),
        ((RBF(0.4), X[0]), {}, "x has shape"),
        ((RBF(0.4), X[:0]), {}, "x is empty"),
        ((RBF(0.4), [[np.nan, 1.0]]), {}, "x has 1 value"),
        ((RBF(np.array([0.1, 0.2])), X), {}, "gamma has shape"),
        ((Precomputed(), X), {}, "x has shape"),
        ((Precomputed(), np.triu(np.ones((3, 3)))), {}, "x is a kernel matrix"),
        ((Precomputed(), scipy.sparse.eye(3, format="csr")), {}, "x has shape|x is sparse"),
    ],
)
def test_bad_inputs_are_refused_by_name(arguments, options, said):
    with pytest.raises(InputError, match=f"^({said})"):
        gram(*arguments, **options)
