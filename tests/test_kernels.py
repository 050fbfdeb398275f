"""Kernels against NumPy differences in float64, composition, derivatives, choosing gamma, descriptions, refusals."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from oracle import laplacian, linear, poly, rbf, sigmoid
from scipy.spatial.distance import pdist

import jaxsvm
from jaxsvm.errors import InputError
from jaxsvm.estimators import SVC
from jaxsvm.kernels import RBF, Function, Kernel, Laplacian, Linear, Polynomial, Sigmoid, as_kernel
from jaxsvm.kernels.width import gamma_median, gamma_paper, gamma_scale, resolve_gamma
from jaxsvm.models.file import _described, _rebuilt

ARD = np.array([0.3, 0.02, 1.1, 0.5])


def weighted(width, x, z):
    return width / (width + ((x - z) ** 2).sum())


def pairs(function, x, z):
    return np.array([[function(a, b) for b in z] for a in x])


TRUTH = {
    "linear": (Linear(), linear),
    "rbf": (RBF(0.4), functools.partial(rbf, gamma=0.4)),
    "ard": (RBF(ARD), lambda x, z: rbf(x * np.sqrt(ARD), z * np.sqrt(ARD))),
    "polynomial": (Polynomial(3, 0.2, 1.5), functools.partial(poly, degree=3, gamma=0.2, coef0=1.5)),
    "homogeneous": (Polynomial(2, 0.5, 0.0), functools.partial(poly, degree=2, gamma=0.5, coef0=0.0)),
    "laplacian": (Laplacian(0.3), functools.partial(laplacian, gamma=0.3)),
    "laplacian_ard": (Laplacian(ARD), lambda x, z: laplacian(x * ARD, z * ARD)),
    "sigmoid": (Sigmoid(0.1, -0.5), functools.partial(sigmoid, gamma=0.1, coef0=-0.5)),
    "function": (
        Function(jax.tree_util.Partial(weighted, 2.0)),
        functools.partial(pairs, lambda a, b: weighted(2.0, a, b)),
    ),
    "sum": (RBF(0.4) + 0.5 * Linear(), lambda x, z: rbf(x, z, 0.4) + 0.5 * linear(x, z)),
    "product": (RBF(0.4) * Linear(), lambda x, z: rbf(x, z, 0.4) * linear(x, z)),
    "nested": (
        2.0 * (RBF(0.4) + Laplacian(0.3)) * RBF(0.1),
        lambda x, z: 2 * (rbf(x, z, 0.4) + laplacian(x, z, 0.3)) * rbf(x, z, 0.1),
    ),
}
STATIONARY = {"rbf", "ard", "laplacian", "laplacian_ard", "nested"}


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(9, 4)), rng.normal(size=(6, 4))
    x[3] = x[2]  # duplicates within x, and between the two sets
    z[1] = x[5]
    return x, z


# --- values


@pytest.mark.parametrize("name", TRUTH)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 3e-6)])
def test_matrix_diag_and_two_points_equal_the_formula(points, name, dtype, tolerance):
    kernel, truth = TRUTH[name]
    x, z = (jnp.asarray(p, dtype) for p in points)
    want = truth(np.asarray(x, np.float64), np.asarray(z, np.float64))
    got = kernel.matrix(x, z)
    assert got.dtype == dtype and got.shape == (9, 6)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())
    one = kernel(x[4], z[2])
    assert one.shape == () and one.dtype == dtype
    np.testing.assert_allclose(one, want[4, 2], rtol=tolerance, atol=tolerance * np.abs(want).max())
    diagonal = np.diagonal(truth(np.asarray(x, np.float64), np.asarray(x, np.float64)))
    np.testing.assert_allclose(kernel.diag(x), diagonal, rtol=tolerance, atol=tolerance)
    assert kernel.diag(x).dtype == dtype
    assert bool(kernel.stationary) == (name in STATIONARY)


@pytest.mark.parametrize("kernel", [RBF(0.5), RBF(ARD), Laplacian(2.0)])
def test_stationary_diag_is_exactly_one(points, kernel):
    x = jnp.asarray(points[0] + 1e4, jnp.float32)
    assert (kernel.diag(x) == 1).all()


def test_integer_points_are_not_rounded_parameters():
    """A parameter cast to the integer dtype of the points would become 0."""
    x = jnp.array([[1, 2], [0, 3], [5, 1]])
    for kernel, truth in (TRUTH[name] for name in ("rbf", "laplacian", "polynomial", "sigmoid", "sum")):
        want = truth(np.asarray(x), np.asarray(x))
        np.testing.assert_allclose(kernel.matrix(x, x), want, rtol=1e-12)
        np.testing.assert_allclose(kernel.diag(x), np.diagonal(want), rtol=1e-12)
        np.testing.assert_allclose(kernel(x[0], x[1]), want[0, 1], rtol=1e-12)


@pytest.mark.parametrize(("shape", "d"), [((1, 1), 4), ((1, 30), 33), ((30, 1), 5), ((7, 30), 1), ((30, 40), 16)])
def test_distances_are_worth_a_few_units_of_rounding(shape, d):
    """At scale 1e3 the expansion of a distance of 1 is off by 0.1; whatever the shape, and in both dtypes."""
    rng = np.random.default_rng(12)
    for dtype in (np.float32, np.float64):
        x, z = (1e3 * rng.normal(size=(rows, d)) for rows in shape)
        common = min(shape)
        x[:common] = z[:common] + rng.normal(size=(common, d)) / np.sqrt(d)
        x, z = x.astype(dtype), z.astype(dtype)
        eps = np.finfo(dtype).eps
        for kernel, exponent in (
            (RBF(0.5), 0.5 * ((x[:, None].astype(np.longdouble) - z) ** 2).sum(-1)),
            (Laplacian(0.5), 0.5 * np.abs(x[:, None].astype(np.longdouble) - z).sum(-1)),
            (RBF(np.full(d, 0.5)), 0.5 * ((x[:, None].astype(np.longdouble) - z) ** 2).sum(-1)),
        ):
            want = np.exp(-exponent)
            error = np.abs(np.asarray(kernel.matrix(jnp.asarray(x), jnp.asarray(z)), np.longdouble) - want)
            assert (error <= 4 * eps * (1 + exponent) * want + np.finfo(dtype).tiny).all()


def test_squares_that_overflow_lose_no_neighbours():
    x = jnp.asarray(np.array([[3e19] * 6, [3e19] * 6, [-3e19] * 6, [0] * 6]), jnp.float32)
    for kernel in (RBF(1.0), RBF(np.ones(6))):
        want = np.eye(4)
        want[0, 1] = want[1, 0] = 1
        np.testing.assert_array_equal(kernel.matrix(x, x), want)


# --- derivatives


@pytest.mark.parametrize("name", [n for n in TRUTH if not n.startswith("laplacian") and n != "nested"])
def test_two_derivatives_at_coinciding_points(points, name):
    kernel, _ = TRUTH[name]
    x = jnp.asarray(points[0][2])
    step = 1e-4

    def along(t, direction):
        return kernel(x + t * direction, x)

    hessian = jax.hessian(lambda a: kernel(a, x))(x)
    slope = jax.grad(lambda a: kernel(a, x))(x)
    for direction in jnp.eye(4)[:2]:
        plus, here, minus = along(step, direction), along(0.0, direction), along(-step, direction)
        np.testing.assert_allclose(slope @ direction, (plus - minus) / (2 * step), rtol=1e-5, atol=1e-6)
        want = (plus - 2 * here + minus) / step**2
        np.testing.assert_allclose(direction @ hessian @ direction, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hessian_of_a_matrix_survives_the_clip(dtype, near):
    """Where the expansion of |x - x|^2 rounds below zero the derivative is still that of the distance."""
    x = jnp.asarray(np.random.default_rng(3).normal(size=(12, 5)) * 3, dtype)

    def diagonal_curvature(i):
        return jax.hessian(lambda a: RBF(0.5).matrix(x.at[i].set(a), x, near=near)[i, i])(x[i])

    curvature = jax.vmap(diagonal_curvature)(jnp.arange(12))
    tolerance = 1e-3 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(curvature, np.broadcast_to(-np.eye(5), (12, 5, 5)), atol=tolerance)


@pytest.mark.parametrize("name", ["rbf", "ard", "laplacian", "sum"])
def test_matrix_derivatives_are_finite_with_duplicates_and_right_in_gamma(points, name):
    kernel, _ = TRUTH[name]
    x, z = map(jnp.asarray, points)
    weights = jnp.asarray(np.random.default_rng(4).normal(size=(9, 6)))

    def value(kernel, x):
        return (kernel.matrix(x, z) * weights).sum()

    by_kernel, by_x = jax.grad(value, argnums=(0, 1))(kernel, x)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((by_kernel, by_x)))
    direction = jax.tree.map(jnp.ones_like, kernel)
    step = 1e-6
    moved = [jax.tree.map(lambda p, s=s: p + s * step, kernel) for s in (1, -1)]
    slope = (value(moved[0], x) - value(moved[1], x)) / (2 * step)
    got = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(by_kernel), jax.tree.leaves(direction), strict=True))
    np.testing.assert_allclose(got, slope, rtol=1e-6)


def test_a_partial_function_is_differentiable_in_its_arguments(points):
    x = jnp.asarray(points[0])

    def value(width):
        return Function(jax.tree_util.Partial(weighted, width)).matrix(x, x).sum()

    slope = (value(2.0 + 1e-6) - value(2.0 - 1e-6)) / 2e-6
    np.testing.assert_allclose(jax.grad(value)(2.0), slope, rtol=1e-7)


def test_scaling_by_any_number(points):
    x = jnp.asarray(points[0])
    want = 0.5 * linear(points[0], points[0])
    for factor in (0.5, np.float64(0.5), np.float32(0.5), jnp.asarray(0.5), np.array(0.5)):
        for kernel in (Linear() * factor, factor * Linear()):
            assert isinstance(kernel, Kernel)
            np.testing.assert_allclose(kernel.matrix(x, x), want, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda c: (c * Linear()).matrix(x, x))(0.5), want, rtol=1e-12)


def test_functions_compose_with_kernels(points):
    x = jnp.asarray(points[0])
    user = functools.partial(weighted, 2.0)
    truth = pairs(user, points[0], points[0])
    np.testing.assert_allclose((Linear() + user).matrix(x, x), linear(x, x) + truth, rtol=1e-12)
    np.testing.assert_allclose((Linear() * user).matrix(x, x), linear(x, x) * truth, rtol=1e-12)
    np.testing.assert_allclose((user + Linear()).matrix(x, x), linear(x, x) + truth, rtol=1e-12)
    np.testing.assert_allclose((user * Linear()).matrix(x, x), linear(x, x) * truth, rtol=1e-12)
    assert as_kernel(user).matrix(x, x).shape == (9, 9)


# --- choosing gamma


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_gamma_rules_against_their_definitions(offset):
    x = np.random.default_rng(5).normal(size=(50, 3)) * [1, 2, 3] + offset
    squared = pdist(x, "sqeuclidean")
    # The average is over ordered pairs, a pattern and itself included: 2 trace(Cov).
    average = 2 * squared.sum() / 50**2
    for points in (x, jnp.asarray(x)):
        np.testing.assert_allclose(gamma_scale(points), 1 / (3 * x.var()), rtol=1e-6)
        np.testing.assert_allclose(gamma_paper(points), 1 / (2 * average), rtol=1e-6)
        np.testing.assert_allclose(gamma_median(points), 1 / np.median(squared), rtol=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_gamma_scale_is_that_of_scikit_learn(offset):
    """With an offset as large as that of seconds since 1970, and in blocks of rows."""
    from sklearn.svm import SVC

    x = np.random.default_rng(6).normal(size=(5000, 2)) * [1, 3] + offset
    theirs = SVC(gamma="scale").fit(x[:40], np.arange(40) % 2)._gamma
    np.testing.assert_allclose(gamma_scale(x[:40]), theirs, rtol=1e-6)
    np.testing.assert_allclose(gamma_scale(x), 1 / (2 * x.var()), rtol=1e-6)
    np.testing.assert_allclose(gamma_paper(x), 1 / (4 * x.var(axis=0).sum()), rtol=1e-6)
    np.testing.assert_allclose(gamma_scale(scipy.sparse.csr_array(x)), gamma_scale(x), rtol=1e-12)
    assert gamma_scale(scipy.sparse.csr_array(np.full((5, 2), 0.1 + offset))) == 1 == gamma_scale(np.ones((5, 2)))


def test_gamma_rules_on_any_sparse_format_and_lists():
    matrix = scipy.sparse.random(40, 6, 0.3, "csr", random_state=6)
    twice = scipy.sparse.csr_matrix((np.array([1.0, 2.0, 5.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 3))
    for rule in ("scale", "paper", "median"):
        want = resolve_gamma(rule, matrix.toarray())
        for other in (matrix.tocsc(), matrix.tocoo(), matrix.toarray().tolist()):
            np.testing.assert_allclose(resolve_gamma(rule, other), want, rtol=1e-10)
        np.testing.assert_allclose(resolve_gamma(rule, twice), resolve_gamma(rule, twice.toarray()), rtol=1e-12)
    assert twice.nnz == 3  # the caller's own keeps its duplicates


def test_gamma_stays_finite_on_equal_points_and_one_point():
    for x in (np.ones((5, 2)), np.ones((1, 2)), np.full((7, 3), 0.1)):
        for rule in ("scale", "paper", "median"):
            assert 0 < resolve_gamma(rule, x) <= 1


def test_resolve_gamma_takes_numbers_as_numbers_and_text():
    assert resolve_gamma(0.25, None) == 0.25
    assert resolve_gamma("0.25", None) == 0.25
    assert resolve_gamma(np.float32(0.25), None) == 0.25
    for bad in ("auto", None, 0.0, -1.0, np.nan, np.inf, "nan", [0.1, 0.2]):
        with pytest.raises(InputError, match="^gamma is"):
            resolve_gamma(bad, np.ones((2, 2)))


# --- in a file


@pytest.mark.parametrize("name", [n for n in TRUTH if n != "function"])
def test_a_kernel_survives_a_file(points, name):
    kernel, _ = TRUTH[name]
    x, z = map(jnp.asarray, points)
    arrays = {}
    back = _rebuilt(json.loads(json.dumps(_described(kernel, "kernel", arrays))), arrays)
    assert type(back) is type(kernel)
    np.testing.assert_array_equal(back.matrix(x, z), kernel.matrix(x, z))


def test_a_gradient_is_a_kernel_though_no_valid_one():
    slope = jax.grad(lambda kernel: -kernel.gamma.sum())(RBF(jnp.array([0.1, 0.2])))
    assert isinstance(slope, RBF) and (slope.gamma == -1).all()
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(2.0 * RBF(0.1))]
    assert paths == [".base.gamma", ".factor"]


def test_a_function_cannot_be_described():
    for kernel in (Function(weighted), Linear() + Function(weighted)):
        with pytest.raises(InputError, match="^kernel.* is .*Function.*no file can hold"):
            _described(kernel, "kernel", {})


# --- refusals


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: RBF(0.0), "gamma"),
        (lambda: RBF(-1.0), "gamma"),
        (lambda: RBF(np.nan), "gamma"),
        (lambda: RBF(None), "gamma"),
        (lambda: RBF("scale"), "gamma"),
        (lambda: RBF(np.array([0.1, -0.1])), "gamma"),
        (lambda: RBF(jnp.array([0.1, np.inf])), "gamma"),
        (lambda: Laplacian(0), "gamma"),
        (lambda: Polynomial(0), "degree"),
        (lambda: Polynomial(2.5), "degree"),  # pyright: ignore
        (lambda: Polynomial(2, gamma=-1.0), "gamma"),
        (lambda: Linear() * -0.5, "factor"),
        (lambda: 0 * Linear(), "factor"),
        (lambda: Linear() * np.ones(3), "factor"),  # would scale columns
        (lambda: "twice" * Linear(), "factor"),
        (lambda: RBF([0.1, -0.1]), "gamma"),
        (lambda: Polynomial(2, gamma=np.ones(4)), "gamma"),
        (lambda: Polynomial(2, coef0=-1.0), "coef0"),
        (lambda: Polynomial(2, coef0=np.nan), "coef0"),
        (lambda: Sigmoid(np.nan), "gamma"),
        (lambda: Sigmoid(1.0, np.ones(2)), "coef0"),
        (lambda: as_kernel("rbf"), "kernel"),
        (lambda: Linear() + 3, "kernel"),
        (lambda: RBF(np.array([0.1, 0.2, 0.3])).matrix(jnp.ones((2, 4)), jnp.ones((2, 4))), "gamma"),
        (lambda: Laplacian(np.array([0.1, 0.2, 0.3])).matrix(jnp.ones((2, 4)), jnp.ones((2, 4))), "gamma"),
    ],
)
def test_bad_parameters_are_refused_by_name(make, name):
    with pytest.raises(InputError, match=f"^{name} "):
        make()


def test_lowers_for_every_platform_in_float32():
    """Every kernel in one program, with float32 only."""
    kernels = [kernel for kernel, _ in TRUTH.values()]
    kernels = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), kernels)
    x = jax.ShapeDtypeStruct((9, 4), jnp.float32)

    def everything(kernels, x):
        return sum(kernel.matrix(x, x).sum() + kernel.diag(x).sum() for kernel in kernels)

    exported = jax.export.export(jax.jit(everything), platforms=["cpu", "cuda", "tpu"])(kernels, x)
    assert "f64" not in exported.mlir_module()


def test_length_scales_of_points_that_a_jitted_function_closes_over():
    """jaxlib 0.10.2 fuses this product of constants on a CPU into wrong numbers, unless it is kept from it."""
    random = np.random.default_rng(0)
    x, z = (random.normal(size=(rows, 50)).astype(np.float32) for rows in (200, 300))
    gamma = (0.05 * random.uniform(size=50)).astype(np.float32)
    closed = jax.jit(lambda gamma: RBF(gamma=gamma).matrix(jnp.asarray(x), jnp.asarray(z)))
    expected = np.exp(-(((x[:, None] - z) ** 2) * gamma).sum(axis=-1))
    np.testing.assert_allclose(closed(jnp.asarray(gamma)), expected, atol=1e-5)
    slopes = jax.jacobian(lambda gamma: closed(gamma).sum())(jnp.asarray(gamma))
    np.testing.assert_allclose(slopes, -(expected[..., None] * (x[:, None] - z) ** 2).sum(axis=(0, 1)), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "float16", "bool"])
def test_products_of_short_numbers_do_not_overflow(dtype):
    x = np.random.default_rng(0).integers(0, 256, (4, 8)).astype(dtype)
    exact = x.astype(int) if dtype != "float16" else x.astype(float)
    products = exact @ exact.T
    known = {
        Linear(): products,
        Polynomial(2, 0.01, 1.0): (0.01 * products + 1) ** 2,
        Sigmoid(1e-5): np.tanh(1e-5 * products),
        Function(lambda a, b: a @ b) * Linear() + 2 * Linear(): products**2 + 2 * products,
    }
    for kernel, expected in known.items():
        np.testing.assert_allclose(kernel.matrix(x, x), expected, rtol=1e-6)
        np.testing.assert_allclose(kernel.diag(x), np.diagonal(expected), rtol=1e-6)
        np.testing.assert_allclose(kernel(x[0], x[1]), expected[0, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "kernel",
    [RBF(0.5), Laplacian(0.5), Linear(), Function(jnp.dot), RBF(0.5) + Linear()],
    ids=lambda kernel: type(kernel).__name__,
)
def test_what_are_no_points_is_refused_by_name(kernel):
    points = np.ones((5, 2), np.float32)
    for wrong in (np.ones(2), np.ones((2, 3, 4)), np.ones((4, 3))):
        for given in ((wrong, points), (points, wrong)):
            with pytest.raises(InputError, match="x has the shape .* and z .*columns"):
                kernel.matrix(*given)
            with pytest.raises(InputError, match="x has the shape .* and z .*columns"):
                kernel.matrix(x=given[0], z=given[1])
    with pytest.raises(InputError, match=r"x has the shape \(5,\): points"):
        kernel.diag(np.ones(5))
    assert kernel.matrix(points[:0], points).shape == (0, 5) and kernel.matrix(points, points[:0]).shape == (5, 0)


def test_an_error_within_a_users_kernel_is_said_to_be_its_own():
    def mine(x, z):
        raise ZeroDivisionError("of mine")

    x, y = np.ones((4, 2)), [0, 1, 0, 1]
    calls = (
        lambda: Function(mine).matrix(x, x),
        lambda: Function(mine)(x[0], x[1]),
        lambda: jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(mine, x), np.array([1, -1, 1, -1]), 1.0)),
        lambda: SVC(kernel=mine).fit(x, y),
    )
    for call in calls:
        with pytest.raises(InputError, match="function that was passed raises ZeroDivisionError: of mine") as found:
            call()
        assert isinstance(found.value.__cause__, ZeroDivisionError)
    with pytest.raises(InputError, match=r"returns shape \(2,\) for two points"):
        Function(lambda x, z: x).matrix(x, x)
