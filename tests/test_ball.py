"""Enclosing balls of points that lie far from the origin, and what their certificates may say."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import oracle_hinge
import pytest
import scipy.sparse
from samples import data, exact, gram, svm

import jaxsvm
from jaxsvm import implicit
from jaxsvm.kernels import RBF, Laplacian, Linear, Polynomial, Precomputed
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe

pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning", "ignore::jaxsvm.PrecisionWarning")
FAR = {"float32 at 2e3": (np.float32, 2e3), "float64 at 1e8": (np.float64, 1e8), "float32 at 0": (np.float32, 0)}


def cloud(dtype, offset, n=30, d=2):
    return (offset + np.random.default_rng(0).normal(size=(n, d))).astype(dtype)


def radius_squared(x):
    x = x.astype(np.longdouble)
    x = (x - x.mean(axis=0)).astype(np.float64)
    return oracle_hinge.solve_meb(x @ x.T)[1]


def solved(problem, tol=1e-3):
    return jaxsvm.fit(problem, FrankWolfe(tol=tol))


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["dense", "tiled", "CSR", "tiled CSR"])
@pytest.mark.parametrize("place", FAR)
def test_a_ball_far_from_the_origin_is_that_of_its_points(place, storage):
    """The gap was said to be 0.0, and the radius 2.58 where 2.65 is needed."""
    x = cloud(*FAR[place])
    given = scipy.sparse.csr_matrix(x) if "CSR" in storage else x
    problem = jaxsvm.meb_problem(jaxsvm.gram(Linear(), given, **({"tile": 8} if "tiled" in storage else {})))
    fit, eps = solved(problem), float(np.finfo(x.dtype).eps)
    ball, want = jaxsvm.ball(fit, problem), radius_squared(x)
    assert fit.status.name == "CONVERGED" and 0 < float(fit.certificate.relative_gap) <= 1e-3
    assert float(fit.certificate.dual) <= want * (1 + 8 * eps) <= float(fit.certificate.primal) * (1 + 16 * eps)
    # The centre itself is rounded to a number that far from 0.
    reach = np.linalg.norm(x.astype(np.longdouble) - np.asarray(ball.centre(x), np.longdouble), axis=1).max()
    assert float(reach) == pytest.approx(float(ball.radius), rel=1e-5, abs=2 * eps * float(np.abs(x).max()))
    norm = np.linalg.norm(np.asarray(fit.alpha, np.longdouble) @ x.astype(np.longdouble))
    assert float(ball.squared_norm) == pytest.approx(float(norm**2), rel=1e-3 if x.mean() < 10 else 1e-5)


@pytest.mark.parametrize("kernel", [2.0 * Linear() + RBF(0.3), Laplacian(0.3), RBF(0.3)])
def test_the_origin_moves_no_ball(kernel):
    near, far = cloud(np.float64, 0), cloud(np.float64, 2.0**20)
    near = far - 2.0**20  # the same points, to the last digit
    found = [solved(jaxsvm.meb_problem(jaxsvm.gram(kernel, x)), 1e-6) for x in (near, far)]
    radii = [float(jaxsvm.ball(f, jaxsvm.meb_problem(jaxsvm.gram(kernel, near))).radius) for f in found]
    assert radii[0] == pytest.approx(radii[1], rel=1e-6)
    assert {f.status.name for f in found} == {"CONVERGED"}


def test_a_ball_under_tracing_and_in_features():
    x = cloud(np.float32, 2e3)
    want = np.sqrt(radius_squared(x))

    def radius(x):
        problem = jaxsvm.meb_problem(jaxsvm.gram(Linear(), x))
        return jaxsvm.ball(solved(problem), problem).radius

    assert float(jax.jit(radius)(x)) == pytest.approx(want, rel=2e-3)
    near = cloud(np.float64, 50.0)  # features of a kernel have an origin of their own
    problem = jaxsvm.meb_problem(jaxsvm.gram(Linear(), near, rank=2))
    assert float(jaxsvm.ball(solved(problem), problem).radius) == pytest.approx(np.sqrt(radius_squared(near)), rel=2e-3)


@pytest.mark.parametrize("kernel", ["precomputed", "polynomial"])
def test_what_rounding_hides_is_not_certified(kernel):
    """The points differ by less than the kernel values can tell: no gap is known, and none is said to be 0."""
    x = cloud(np.float32, 2e3)
    gram = (
        jaxsvm.gram(Precomputed(), x @ x.T)
        if kernel == "precomputed"
        else jaxsvm.gram(Polynomial(3, 1.0, 0.0), x, store=True)
    )
    problem = jaxsvm.meb_problem(gram)
    fit = solved(problem)
    K = np.asarray(gram.K, np.float64)
    alpha = np.asarray(fit.alpha, np.float64) / np.asarray(fit.alpha, np.float64).sum()
    reach = (np.diag(K) - 2 * K @ alpha + alpha @ K @ alpha).max()
    assert float(fit.certificate.primal) >= reach
    assert fit.status.name != "CONVERGED" or float(fit.certificate.relative_gap) >= reach / radius_squared(x) - 1


def test_a_subset_is_no_coreset_because_a_solver_left_it():
    """The ball of two near points does not cover a third one."""
    x = np.array([[100.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    whole = jaxsvm.meb_problem(jaxsvm.gram(Linear(), x))
    assert not jaxsvm.is_coreset(whole, [1, 2], 1e-2)
    assert jaxsvm.is_coreset(whole, [0, 1], 1e-2)


@pytest.mark.thorough
def test_points_that_differ_where_all_kernel_values_are_one_have_no_known_radius():
    """Adversarial problem 1141: RBF values round to 1 before points are one."""
    x = np.full((6, 20), 74.0, np.float32)
    x[3:] = np.nextafter(np.float32(74.0), np.float32(80.0))
    for options in ({}, {"tile": 4}):
        gram = jaxsvm.gram(RBF(1.0), x, **options)
        assert (np.asarray(gram.rows(np.arange(6))) == 1).all()
        with pytest.warns(jaxsvm.ConvergenceWarning):
            fit = jaxsvm.fit(jaxsvm.meb_problem(gram), FrankWolfe(tol=1e-3, max_steps=1000))
        assert fit.status.name != "CONVERGED" and not float(fit.certificate.relative_gap) < 1


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [[[1e4, 0], [1, 0], [1.0001, 0]], [[1e8, 0], [0, 0], [1e-3, 0]]])
@pytest.mark.parametrize("held", ["dense", "CSR", "rank"])
def test_absent_points_move_nothing(rows, held):
    """The mean of a far point that is absent rounded those that count into one: a certified radius of 0."""
    x = np.asarray(rows, np.float32)
    points, options = (scipy.sparse.csr_matrix(x) if held == "CSR" else x), ({"rank": 2} if held == "rank" else {})
    problem = jaxsvm.meb_problem(jaxsvm.gram(Linear(), points, **options), sample_weight=[0, 1, 1])
    fit = jaxsvm.fit(problem, FrankWolfe(tol=1e-3))
    radius = np.linalg.norm(x[1].astype(float) - x[2]) / 2
    assert fit.status.name != "NOT_PSD"
    assert float(jaxsvm.ball(fit, problem).radius) >= radius * (1 - 1e-3)
    assert fit.status.name == "CONVERGED" or held != "dense"


@pytest.mark.thorough
def test_points_that_are_one_have_a_radius_of_zero():
    kernels = (Linear(), RBF(1.0), Polynomial(2), Linear() + RBF(0.5))
    one, five, far = np.full((1, 3), 0.1), np.full((5, 3), 0.1), np.full((5, 3), 1e8 + 0.1)
    for x, kernels_of in ((one, kernels[:1]), (five, kernels), (far, kernels)):
        for kernel in kernels_of:
            problem = jaxsvm.meb_problem(jaxsvm.gram(kernel, x))
            fit = solved(problem)
            assert fit.status.name == "CONVERGED" and float(jaxsvm.ball(fit, problem).radius) == 0
    apart = np.full((5, 3), 0.1)
    apart[4] = 3.0  # absent
    fit = solved(jaxsvm.meb_problem(jaxsvm.gram(RBF(1.0), apart), sample_weight=[1, 1, 1, 1, 0]))
    assert fit.status.name == "CONVERGED" and float(fit.certificate.primal) == 0
    assert float(jnp.abs(fit.alpha[4])) == 0


def test_an_svm_with_constant_diagonal_is_a_ball():
    """docs/mathematics.md, The dual: z_i . z_j = Kt_ij, r*^2 = Delta^2 - R*, and the support is a coreset."""
    here = svm()
    fit = jaxsvm.check(jaxsvm.fit(here, FrankWolfe(tol=1e-10)))
    found = jaxsvm.ball(fit, here)
    radius_squared = 2 + 1 / 2.0 - exact().R
    assert float(found.lower_radius) == pytest.approx(np.sqrt(radius_squared), rel=1e-9)
    assert float(found.radius) == pytest.approx(np.sqrt(radius_squared), rel=1e-6)
    truth = oracle_hinge.solve_meb(oracle.kt_matrix(np.asarray(gram().K), data()[1], 2.0))[1]
    assert truth == pytest.approx(radius_squared, rel=1e-9)
    assert jaxsvm.is_coreset(here, found.coreset, 1e-3)
    assert not jaxsvm.is_coreset(here, found.coreset[:3], 1e-3)
    varying = jaxsvm.svm_problem(jaxsvm.gram(Polynomial(2), data()[0]), data()[1], 2.0)
    with pytest.raises(jaxsvm.InputError, match="diagonal"):
        jaxsvm.ball(jaxsvm.fit(varying, FrankWolfe(tol=1e-2)), varying)


def test_a_subset_is_named_by_indices_or_by_a_mask():
    """A mask was taken for the indices 0 and 1, fractions were rounded, and indices beyond the end were no error."""
    here = jaxsvm.meb_problem(jaxsvm.gram(Linear(), [[0.0, 0.0], [1.0, 0.0], [5.0, 5.0], [-3.0, 2.0]]))
    assert jaxsvm.is_coreset(here, np.ones(4, bool), 1e-2)
    assert jaxsvm.is_coreset(here, [2, 3, 3], 1e-2) and jaxsvm.is_coreset(here, np.arange(4) >= 2, 1e-2)
    assert not jaxsvm.is_coreset(here, np.arange(4) < 2, 1e-2)
    for subset in ([2, 3, 4], [-1, 2], [2.9, 3.9], [2.0, 3.0], np.zeros(4, bool), np.ones(3, bool), [], [[2, 3]], "23"):
        with pytest.raises(jaxsvm.InputError, match="subset"):
            jaxsvm.is_coreset(here, subset, 0.5)
    for eps in (0.0, np.nan, "1"):
        with pytest.raises(jaxsvm.InputError, match="eps"):
            jaxsvm.is_coreset(here, [2, 3], eps)
    with pytest.raises(jaxsvm.InputError, match="subset"):
        jaxsvm.is_coreset(here.weighted([1, 1, 0, 0]), [2, 3], 0.5)


def test_a_ball_of_an_svm_needs_no_second_class():
    """Indices of a single class, judged by the exact ball of their columns of Kt."""
    y = data()[1]
    Kt, inside = oracle.kt_matrix(np.asarray(gram().K), y, 2.0), np.flatnonzero(y > 0)
    weights, radius_squared = oracle_hinge.solve_meb(Kt[np.ix_(inside, inside)])
    centre = np.zeros(len(y))
    centre[inside] = weights
    reach = np.sqrt((np.diag(Kt) - 2 * Kt @ centre + centre @ Kt @ centre).max() / radius_squared) - 1
    assert jaxsvm.is_coreset(svm(), inside, 1.001 * reach) and not jaxsvm.is_coreset(svm(), inside, 0.999 * reach)


def test_a_ball_of_many_points():
    """From 4,096 points on drivers prove squared-hinge and box fits by the sums that steps carry: a ball has none."""
    x = np.random.default_rng(0).normal(size=(4100, 2))
    fit = jaxsvm.check(jaxsvm.fit(jaxsvm.meb_problem(jaxsvm.gram(RBF(gamma=0.5), x)), FrankWolfe(tol=1e-2)))
    assert fit.status.name == "CONVERGED"


@pytest.mark.parametrize("kernel", [RBF, Polynomial])
def test_the_squared_radius_has_the_derivatives_of_the_exact_one(kernel):
    """Against differences of the oracle's radius, in the kernel's gamma and in a coordinate of each point."""
    x, step = cloud(np.float64, 1.0), 1e-5

    def problem(gamma, moved):
        of = kernel(gamma) if kernel is RBF else kernel(degree=2, gamma=gamma, coef0=1.0)
        return jaxsvm.meb_problem(jaxsvm.gram(of, jnp.asarray(x).at[:, 0].add(moved * jnp.arange(30) / 30)))

    def exact(gamma, moved):
        here = problem(gamma, moved)
        return oracle_hinge.solve_meb(np.asarray(here.gram.kernel.matrix(here.gram.x, here.gram.x)))[1]

    fit = solved(problem(0.5, 0.0), 1e-10)

    def value(gamma, moved):
        return implicit.value(problem(gamma, moved), fit)

    assert float(value(0.5, 0.0)) == pytest.approx(exact(0.5, 0.0), rel=1e-8)
    found = jax.jit(jax.grad(value, (0, 1)))(0.5, 0.0)
    around = [(exact(0.5 + a, b) - exact(0.5 - a, -b)) / (2 * step) for a, b in ((step, 0.0), (0.0, step))]
    np.testing.assert_allclose(found, around, rtol=2e-5)
    with pytest.raises(jaxsvm.InputError, match="first derivatives only"):
        jax.grad(jax.grad(value))(0.5, 0.0)


@pytest.mark.parametrize("C", [1e-2, 0.3, 20.0, 1e6])
@pytest.mark.parametrize("given", ["linear", "rbf tiled", "precomputed", "features"])
def test_a_soft_ball_is_that_of_points_with_coordinates_of_their_own(given, C):
    """Against the exact ball of `K + I / C`, and the soft ball's primal objective at the slacks that alpha implies."""
    x = cloud(np.float64, 3.0, n=23)
    kernel: jaxsvm.kernels.Kernel = RBF(0.5) if "rbf" in given else Linear()
    K = np.asarray(kernel.matrix(x, x))
    gram = jaxsvm.gram(Precomputed(), K) if given == "precomputed" else jaxsvm.gram(
        kernel, x, **({"rank": 2} if given == "features" else {"tile": 8} if "tiled" in given else {}))  # fmt: skip
    weight = np.where(np.arange(23) < 20, 1.0, 0.0)
    problem = jaxsvm.meb_problem(gram, sample_weight=weight, C=C)
    want = oracle_hinge.solve_meb(K[:20, :20] + np.eye(20) / C)[1]
    for solver in (FrankWolfe(tol=1e-7), FrankWolfe("away", tol=1e-4), jaxsvm.CoreVectorMachine(tol=1e-4)):
        fit = jaxsvm.check(jaxsvm.fit(problem, solver))
        primal, dual, _ = map(float, fit.certificate)
        assert dual <= want * (1 + 1e-9) and want <= primal * (1 + 1e-9)
        a = np.asarray(fit.alpha)
        distance, slack = np.diagonal(K) - 2 * K @ a + a @ K @ a, 2 * a / C
        squared = (distance - slack)[:20].max()
        assert want - 1e-9 <= 1 / C + squared + C / 4 * (slack**2).sum() <= primal * (1 + 1e-6)
    ball = jaxsvm.ball(fit, problem)
    assert float(ball.squared_norm) == pytest.approx(a @ (K + np.eye(23) / C) @ a, rel=1e-9)
    np.testing.assert_allclose(problem.matvec(fit.alpha), jax.vmap(problem.column, out_axes=1)(jnp.arange(23)) @ a,
                               rtol=1e-6, atol=1e-7 * (1 + 1 / C))  # fmt: skip
    index = jnp.array([3, 1, 7])
    np.testing.assert_allclose(problem.columns(index), problem.block(index, jnp.arange(23)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kernel", [RBF(1.0), Precomputed()])
def test_the_soft_ball_of_one_point_is_a_point_though_its_square_is_rounded(kernel):
    """In float32 `1 + 1 / C` is rounded, which float64 took for a negative squared radius."""
    x = np.array([[1.0, 0.5], [0.5, 1.0]], np.float32)
    for C in (3.0, 100.0, 1e8):
        problem = jaxsvm.meb_problem(jaxsvm.gram(kernel, x), sample_weight=np.array([1.0, 0.0]), C=C)
        fit = solved(problem, 1e-3)
        assert fit.certificate.primal == fit.certificate.dual == 0
    same = jaxsvm.gram(kernel, np.ones((2, 2), np.float32))
    P, D, _ = jaxsvm.fit(jaxsvm.meb_problem(same, C=1e8), FrankWolfe(tol=1e-3)).certificate
    assert D <= 5e-9 <= P < 1e-5


@pytest.mark.parametrize("C", [None, 0.3])
def test_a_ball_on_another_operator_keeps_its_points_and_its_c(C):
    x, weight = cloud(np.float64, 0.0), (np.arange(30) > 3).astype(float)
    there = jaxsvm.gram(RBF(2.0), x)
    moved = jaxsvm.meb_problem(jaxsvm.gram(RBF(0.5), x), sample_weight=weight, C=C).on(there)
    want = jaxsvm.meb_problem(there, sample_weight=weight, C=C)
    assert (moved.mask == want.mask).all() and moved.mask.dtype == bool and moved.ridge == want.ridge
    np.testing.assert_array_equal(solved(moved, 1e-6).alpha, solved(want, 1e-6).alpha)
    code = jax.jit(lambda C: jaxsvm.fit(jaxsvm.meb_problem(there, C=C).on(there)).status.code)(0.0)
    assert int(code) == jaxsvm.Status.INFEASIBLE


def test_a_soft_ball_has_a_derivative_in_c_and_refuses_what_is_none():
    x = cloud(np.float64, 0.0)
    gram = jaxsvm.gram(RBF(0.5), x)

    def value(C, at=None):
        problem = jaxsvm.meb_problem(gram, C=C)
        return implicit.value(problem, solved(problem, 1e-10) if at is None else at)

    fit = solved(jaxsvm.meb_problem(gram, C=2.0), 1e-10)
    around = [float(value(2.0 + step)) for step in (-1e-4, 1e-4)]
    assert float(jax.grad(value)(2.0, fit)) == pytest.approx((around[1] - around[0]) / 2e-4, rel=1e-4)
    found = jax.jit(lambda C: jaxsvm.fit(jaxsvm.meb_problem(gram, C=C)).status.code)(0.0)
    assert int(found) == jaxsvm.Status.INFEASIBLE
    for C in (0.0, -1.0, np.inf, [1.0, 2.0]):
        with pytest.raises(jaxsvm.InputError, match="C"):
            jaxsvm.meb_problem(gram, C=C)
