"""Certificates in float64 for float32 data with x64 off, as most callers have it; judged in NumPy, float64."""

import dataclasses
import re
import warnings

import jax
import jax.numpy as jnp
import lowered
import numpy as np
import pytest
from oracle_hinge import gap_of

import jaxsvm
from jaxsvm.errors import PrecisionWarning
from jaxsvm.gram.operators import part_of
from jaxsvm.kernels import RBF, Linear, Polynomial, Precomputed
from jaxsvm.loop import bursts
from jaxsvm.numerics.precision import in_double, like
from jaxsvm.problems.certificates.corrections import corrected
from jaxsvm.problems.water_level import level_by_bisection


def test_kernel_values_of_64_bits_need_them_turned_on():
    with jax.enable_x64(False), pytest.raises(jaxsvm.InputError, match="dtype is float64: .* x64 turned on"):
        jaxsvm.gram(RBF(0.5), np.eye(3), dtype="float64")


def clouds(n, d, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = np.where(x[:, 0] + 0.5 * rng.normal(size=n) > 0, 1.0, -1.0)
    return x.astype(np.float32), y


def test_float64_inside_loops_and_lanes_whatever_the_flag_says():
    """Sums that float32 cannot hold come out right in jit, in a while loop, under vmap of it, and of that."""
    values = jnp.asarray(np.array([1e8, 1.0, -1e8, 0.5]), jnp.float32)

    @in_double
    def total(v):
        return v.astype(jnp.float64).sum().astype(jnp.float32)

    def twice(v):
        return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, total(v)), (0, jnp.float32(0)))[1]

    with jax.enable_x64(False):
        assert float(jax.jit(total)(values)) == float(jax.jit(twice)(values)) == 1.5
        lanes = jnp.stack([values, 2 * values])
        np.testing.assert_array_equal(jax.jit(jax.vmap(twice))(lanes), [1.5, 3.0])
        np.testing.assert_array_equal(jax.jit(jax.vmap(jax.vmap(twice)))(lanes[None]), [[1.5, 3.0]])
        assert total(values).dtype == jnp.float32
        assert float(jax.grad(lambda v: (v * twice(jax.lax.stop_gradient(v))).sum())(values)[0]) == 1.5


def test_float64_has_derivatives_in_float64():
    """Of any order, in both modes, in lanes, under jit, and of what it closes over; next to integers."""
    values, count = jnp.asarray(np.array([1e4, 1.0, -1e4, 0.5]), jnp.float32), jnp.arange(3)

    @in_double
    def cubed(v, k):
        total = v.astype(jnp.float64).sum()
        return (total**3 / 3).astype(jnp.float32), k + 1

    def f(v):
        return cubed(v, count)[0]

    with jax.enable_x64(False):
        np.testing.assert_array_equal(jax.grad(f)(values), np.full(4, 2.25))
        np.testing.assert_array_equal(jax.jit(jax.grad(f))(values), np.full(4, 2.25))
        assert float(jax.jvp(f, (values,), (values,))[1]) == 1.5**3
        for hessian in (jax.jacfwd(jax.jacrev(f)), jax.jacrev(jax.jacfwd(f)), jax.jit(jax.jacrev(jax.jacrev(f)))):
            np.testing.assert_array_equal(hessian(values), np.full((4, 4), 3.0))
        lanes = jax.jit(jax.vmap(jax.grad(f)))(jnp.stack([values, 2 * values]))
        np.testing.assert_array_equal(lanes, np.array([[2.25] * 4, [9.0] * 4]))
        scaled = jax.grad(lambda a: in_double(lambda v: (a * v.astype(jnp.float64)).sum().astype(jnp.float32))(values))
        assert float(scaled(jnp.float32(2))) == 1.5
        assert scaled(jnp.float32(2)).dtype == jnp.float32


def test_a_tolerance_of_numpy_widens_no_float32_fit():
    """A `np.float64` has a dtype of its own, which a Python number lacks: as of `np.logspace`, with x64 on."""
    x, y = clouds(60, 3)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.2), x), y, 1.0)
    with jax.enable_x64(True):
        for solver in (jaxsvm.WorkingSet, jaxsvm.SMO):
            fit = jaxsvm.fit(problem, solver(tol=np.float64(1e-3)))
            assert (fit.status.name, fit.alpha.dtype) == ("CONVERGED", np.float32)


def test_like_keeps_dtypes_and_random_keys():
    old = (jnp.zeros((), jnp.float32), jax.random.key(0), jnp.zeros((), jnp.int32))
    new = (jnp.ones((), jnp.float64), jax.random.key(1), jnp.ones((), jnp.int64))
    rounded = like(new, old)
    assert [leaf.dtype for leaf in rounded] == [leaf.dtype for leaf in old]
    assert bool((jax.random.key_data(rounded[1]) == jax.random.key_data(new[1])).all())


@pytest.mark.thorough
@pytest.mark.parametrize("C", [1.0, 1e4])
def test_a_hinge_fit_goes_as_far_as_its_numbers_allow(C):
    """Below the floor of float32 coefficients a longer w is certified beside the same dual point."""
    x, y = clouds(60, 5)
    with jax.enable_x64(False):
        gram = jaxsvm.gram(RBF(0.2), x, store=True)
        fit = jaxsvm.fit(jaxsvm.hinge_problem(gram, y, C, bias="free"), jaxsvm.SMO(tol=1e-3))
    assert fit.status.name == "CONVERGED"
    assert gap_of(gram.K, y, C, fit, "free") <= 1.1e-3


@pytest.mark.parametrize(
    ("solver", "bias"),
    [
        (jaxsvm.InteriorPoint(tol=1e-5), "free"),
        (jaxsvm.SMO(tol=1e-5), "regularized"),
        pytest.param(jaxsvm.InteriorPoint(tol=1e-5), "regularized", marks=pytest.mark.slow),
        pytest.param(jaxsvm.SMO(tol=1e-5), "free", marks=pytest.mark.slow),
    ],
    ids=["interior point", "smo", "interior point, regularized", "smo, free"],
)
def test_a_linear_hinge_fit_takes_back_what_rounding_did(solver, bias):
    """Coefficients of 1e4 in float32 are off by 5e-4: d samples that are no support carry the difference."""
    x, y = clouds(90, 6)
    with jax.enable_x64(False):
        fit = jaxsvm.fit(jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, 1e4, bias=bias), solver)
    assert fit.status.name == "CONVERGED"
    wide, a, b = x.astype(float), np.asarray(fit.alpha, float), float(fit.bias)
    w, v = wide.T @ np.asarray(fit.dual_coef, float), wide.T @ (y * a)
    constant, of_a = (b * b, (y @ a) ** 2) if bias == "regularized" else (0.0, 0.0)
    primal = (w @ w + constant) / 2 + 1e4 * np.maximum(0, 1 - y * (wide @ w + b)).sum()
    dual = a.sum() - (v @ v + of_a) / 2
    assert bias == "regularized" or abs(y @ a * b) <= 1e-7 * dual
    assert (primal - dual) / dual <= 1.1e-5
    assert ((np.asarray(fit.dual_coef) != 0) & (a == 0)).sum() <= 7


@pytest.mark.parametrize("bias", ["regularized", "free"])
def test_margins_on_the_support_are_mended_by_few_samples_that_are_none(bias):
    """In NumPy: margins that rounding moved, up to a bias if it is free, of a w in 5 dimensions at most."""
    rng, C = np.random.default_rng(0), 100.0
    x = rng.normal(size=(60, 4))
    y = np.where(x[:, 0] + rng.normal(size=60) > 0, 1.0, -1.0)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, C, bias=bias)
    a = np.asarray(jaxsvm.fit(problem, jaxsvm.InteriorPoint(tol=1e-10)).alpha)
    inside = (a > 1e-6) & (a < C - 1e-6)
    a = np.where(inside, a * (1 + 1e-5 * rng.normal(size=60)), np.where(a > 1, C, 0)).astype(np.float32)
    H = y[:, None] * np.column_stack([x, np.full(60, float(bias == "regularized"))])

    def off(a):
        short = y[inside] * (1 - H @ (H.T @ a))[inside]
        return np.abs(short - (short.mean() if bias == "free" else 0)).max()

    wide = a.astype(float)
    found = np.asarray(
        corrected(problem, jnp.asarray(x), jnp.asarray(wide), jnp.asarray(H @ (H.T @ wide)), jnp.float32)[0]
    )
    assert off(found) < off(wide) / 30
    assert 0 < (found != a).sum() <= 5
    assert not (found != a)[a > 0].any()


@pytest.mark.thorough
@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize(("offset", "C"), [(0.0, 1e6), (10.0, 1e5)])
def test_decision_values_are_those_that_were_certified(offset, C, rank):
    """Large coefficients cancel: summed in float32 half of the labels were wrong, of a fit that had converged."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    y = np.where(x[:, 0] + rng.normal(size=60) > 0, 1.0, -1.0)
    x = x + np.float32(offset)
    with jax.enable_x64(False):
        problem = jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x, rank=rank), y, C, bias="free")
        fit = jaxsvm.fit(problem, jaxsvm.InteriorPoint(tol=1e-5))
        model = jaxsvm.compact(fit, problem)
        found = [jaxsvm.decision_function(fit, problem, x), jaxsvm.decision_function(model, x)]
        slope = jax.grad(lambda point: jaxsvm.decision_function(model, point[None])[0])(jnp.asarray(x[0]))
        again = jaxsvm.fit(problem, jaxsvm.InteriorPoint(tol=1e-5), init=fit)
    assert fit.status.name == again.status.name == "CONVERGED"
    for values in found:
        np.testing.assert_allclose(values, y * np.asarray(fit.margins), atol=1e-4 if rank is None else 1e-2)
        assert values.dtype == np.float32
    if rank is None:
        np.testing.assert_allclose(slope, x.astype(float).T @ np.asarray(fit.dual_coef, float), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("C", [1.0, 1e4])
@pytest.mark.parametrize("bias", ["free", "regularized"])
def test_a_solution_on_its_support_is_certified_as_it_is_returned(bias, C):
    """`implicit.solution` in float32: with the bias that the system gave, not the best one."""
    x, y = clouds(60, 3)
    with jax.enable_x64(False):
        gram = jaxsvm.gram(RBF(0.3), x, store=True)
        found = jaxsvm.implicit.solution(jaxsvm.hinge_problem(gram, y, C, bias=bias))
    K, a, b = np.asarray(gram.K, float), np.clip(np.asarray(found.alpha, float), 0, C), float(found.bias)
    coef, offset = np.asarray(found.dual_coef, float), float(bias == "regularized")
    primal = (coef @ K @ coef + offset * b * b) / 2 + C * np.maximum(0, 1 - y * (K @ coef + b)).sum()
    dual = a.sum() - ((y * a) @ K @ (y * a) + offset * (y @ a) ** 2) / 2
    gap = float(found.certificate.relative_gap)
    assert gap >= 0.95 * (primal - dual) / dual - 1e-6
    assert gap <= 1e-2 and (found.status.name == "CONVERGED") == (gap <= 1e-4)  # float32, C = 1e4: 2e-3; jax 0.9: 7e-3


def test_products_and_entries_of_a_widened_linear_kernel_are_one_matrix():
    """Its diagonal too: one in float32 beside entries in float64 is no positive semidefinite matrix."""
    x, _ = clouds(30, 4)
    with jax.enable_x64(False):
        gram = jaxsvm.gram(Linear(), x)
    every, wide = np.arange(30), x.astype(float) @ x.astype(float).T
    with jax.enable_x64(True):
        for held in (gram, jaxsvm.gram(Linear(), x, tile=8)):
            exact = held.widened(jnp.dtype(float))
            for K in (exact.block(every, every), exact.rows(every), exact.matvec(jnp.eye(30))):
                np.testing.assert_allclose(K, wide, rtol=1e-14, atol=1e-14)
            np.testing.assert_allclose(exact.diag(), np.diag(wide), rtol=1e-14)


def test_a_dual_value_whose_quadratic_form_cancels_is_not_believed():
    """Adversarial problem 3541: three points in one place, a kernel of 8e7, C = 7e7: the dual was a third too large."""
    x = np.full((3, 1), 8926.82114289)
    x[1] += 2e-12
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(2.4) + Linear(), x, tile=2), [-1, -1, 1], 6.742e7)
    alpha = jnp.array([0.5, 0.0, 0.5])
    said = problem.certified(alpha, problem.matvec(alpha), jnp.dtype(float)).certificate
    assert float(said.relative_gap) > 0.1
    assert float(said.dual) <= float(problem.C) * 1.5


def test_a_squared_norm_that_rounded_kernel_values_make_negative_is_none():
    """Adversarial problems 3387 and 3446 of seed 37: a w of norm 0 lowered R; the dual was up to 4 times too large."""
    rng = np.random.default_rng(0)
    y, negative = np.where(np.arange(30) < 15, 1.0, -1.0), 0
    for _ in range(8):
        x = rng.uniform(1, 2, size=(30, 1)).astype(np.float32)
        problem = jaxsvm.svm_problem(jaxsvm.gram(Polynomial(2, 0.7, 0.0), x, tile=8), y, 2e6, bias="none")
        features = 0.7 * x.astype(float)[:, 0] ** 2
        beta = rng.uniform(size=30)
        beta[:15] *= (features[15:] @ beta[15:]) / (features[:15] @ beta[:15])  # w = 0
        beta = jnp.asarray(beta / beta.sum(), jnp.float32)
        s = problem.matvec(beta.astype(float))
        said = problem.certified(beta.astype(float), s, jnp.dtype(jnp.float32)).certificate
        b = np.asarray(beta, float)
        dual = b.sum() ** 2 / (2 * ((features @ (y * b)) ** 2 + b @ b / 2e6))
        negative += int(b @ np.asarray(s) < 0.8 * (b @ b) / 2e6)
        assert float(said.dual) <= 1.001 * dual
        assert float(said.relative_gap) >= 0.999 * (2e6 * 30 / 2 / dual - 1)
    assert negative


def test_an_indefinite_matrix_is_none_for_a_slack_budget_either():
    """Adversarial problem 999: p keeps an equality along which all is well, w does not: a bound above the optimum."""
    K = np.array([[0.92, -0.89], [-0.89, 0.745]])
    problem = jaxsvm.slack_problem(jaxsvm.gram(Precomputed(), K), [-1, 1], 0.27, bias="free")
    with pytest.warns(jaxsvm.ConvergenceWarning, match="NOT_PSD"):
        jaxsvm.fit(problem, jaxsvm.StochasticBatchPerceptron(steps=2000, batch=2, tol=1e-4))


@pytest.mark.thorough
def test_a_large_matrix_that_nobody_vouches_for_is_looked_into_with_x64_off():
    """Lanczos products in float64 with the flag off; parts of a kernel's own matrix are vouched for."""
    x, y = clouds(2100, 4)
    with jax.enable_x64(False):
        whole = jaxsvm.gram(RBF(0.2), x, store=True)
        given = jaxsvm.gram(Precomputed(), whole.K)
        assert part_of(whole, whole.K[:50, :50]).definite
        assert not part_of(given, whole.K[:50, :50]).definite
        fit = jaxsvm.fit(jaxsvm.svm_problem(given, y, 1.0), jaxsvm.FrankWolfe(tol=1e-2))
        assert fit.status.name == "CONVERGED"
        turned = jaxsvm.gram(Precomputed(), whole.K - 300 * np.outer(y, y) / len(y))
        with pytest.warns(jaxsvm.ConvergenceWarning, match="NOT_PSD"):
            jaxsvm.fit(jaxsvm.hinge_problem(turned, y, 1e-3), jaxsvm.SMO(tol=0.5))


@pytest.mark.thorough
@pytest.mark.parametrize("bias", ["none", "regularized", "free"])
def test_a_chain_of_hinge_fits_over_an_indefinite_matrix_is_not_converged(bias):
    """Adversarial problem 469: of 9,972 in float32 the folds and paths of such matrices alone were false."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(30, 30))
    problem = jaxsvm.hinge_problem(jaxsvm.gram(Precomputed(), A + A.T), np.sign(A[0]), bias=bias)
    path = jaxsvm.solve_path(problem, [0.1, 1.0, 10.0], tol=1e-3)
    assert (np.asarray(path.status.code) == jaxsvm.Status.NOT_PSD).all()
    folds = jaxsvm.cross_validate(problem, [0.1, 1.0], folds=3, tol=1e-3)
    assert not (np.asarray(folds.fits.status.code) == jaxsvm.Status.CONVERGED).any()


@pytest.mark.thorough
def test_a_definite_matrix_that_was_computed_elsewhere_converges():
    x, y = clouds(60, 4)
    K = np.asarray(jaxsvm.gram(RBF(0.3), x, store=True).K)
    for bias in ("regularized", "free"):
        problem = jaxsvm.hinge_problem(jaxsvm.gram(Precomputed(), K), y, 1.0, bias=bias)
        assert jaxsvm.fit(problem, jaxsvm.SMO(tol=1e-3)).status.name == "CONVERGED"
    # -|x - z|^2 is positive semidefinite where coefficients sum to 0, which is all that a free bias asks.
    D = -((x[:, None].astype(float) - x[None]) ** 2).sum(-1)
    free = jaxsvm.hinge_problem(jaxsvm.gram(Precomputed(), D), y, 1.0, bias="free")
    assert jaxsvm.fit(free, jaxsvm.SMO(tol=1e-3)).status.name == "CONVERGED"


@pytest.mark.thorough
def test_water_levels_by_bisection_keep_their_digits_with_weights_over_seven_decades():
    rng = np.random.default_rng(0)
    with jax.enable_x64(False):
        for _ in range(5):
            w = jnp.asarray(10 ** rng.uniform(-5, 2, 50), jnp.float32)
            c, y = jnp.asarray(rng.normal(size=50), jnp.float32), jnp.where(jnp.arange(50) % 2, 1.0, -1.0)
            found = level_by_bisection(c, y, jnp.float32(3), w).level
            wanted = jaxsvm.water_level_with_bias(c, y, 3.0, weight=w).level
            assert float(found) == pytest.approx(float(wanted), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", ["interior point", "newton", "slack"])
def test_nothing_is_rounded_in_a_way_that_xla_may_take_back(kind):
    """On a GPU it removed a conversion to float32 and back: 13 of 1,111 fits were certified for numbers nobody got."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    y, gram = np.where(x[:, 0] > 0, 1.0, -1.0), jaxsvm.gram(Linear(), x)
    with jax.enable_x64(False):
        problem, solver = {
            "interior point": (jaxsvm.hinge_problem(gram, y), jaxsvm.InteriorPoint()),
            "newton": (jaxsvm.svm_problem(gram, y), jaxsvm.Newton()),
            "slack": (jaxsvm.slack_problem(gram, y, 0.1), None),
        }[kind]
        text = jax.jit(lambda problem: jaxsvm.fit(problem, solver)).lower(problem).as_text()
    assert text.count("reduce_precision") > 0
    for function in text.split("func.func"):
        narrow = re.findall(r"(%\S+) = stablehlo.convert %\S+ : \(tensor<\S*f64>\) -> tensor<\S*f32>", function)
        wide = re.findall(r"stablehlo.convert (%\S+) : \(tensor<\S*f32>\) -> tensor<\S*f64>", function)
        assert not {*narrow} & {*wide}


def test_a_python_float_has_derivatives_of_any_order():
    """Inside the operation its primal was float64 and its tangent float32."""
    with jax.enable_x64(False):
        cube = in_double(lambda v: (v.astype(jnp.float64) ** 3).astype(jnp.float32))
        assert float(jax.jacfwd(cube)(0.5)) == pytest.approx(0.75)
        assert float(jax.hessian(cube)(0.5)) == pytest.approx(3.0)


def test_a_point_that_proves_nothing_has_the_scale_of_its_alpha():
    """In float32 alone a cancelled `beta' K beta` may be rounding: paths still read `alpha / R` as coefficients."""
    y = np.tile([1.0, -1.0], 30).astype(np.float32)
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(1.0), np.zeros((60, 1), np.float32)), y, 1e6)
    beta = jnp.full((60,), 7.0, jnp.float32)
    answer = problem.certified(beta, problem.matvec(beta), jnp.float32)
    assert np.isinf(answer.certificate.relative_gap)
    np.testing.assert_allclose(answer.alpha.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(answer.R * beta.sum() ** 2, beta @ problem.matvec(beta), rtol=1e-5)


@pytest.mark.thorough
def test_what_rounded_kernel_values_move_is_said():
    """Their optimum is certified, and differs from that of exact values by more than the gap."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = np.where(x[:, 0] + rng.normal(size=200) > 0, 1, -1)
    gram = jaxsvm.gram(RBF(gamma=1e-2), x)
    with pytest.warns(PrecisionWarning, match="with exact ones the relative gap is"):
        rounded = jaxsvm.fit(jaxsvm.svm_problem(gram, y, 1e4), tol=1e-5)
    with jax.enable_x64(True):
        exact = jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=1e-2), x.astype(np.float64)), y, 1e4), tol=1e-9)
    moved = abs(float(rounded.certificate.primal) / float(exact.certificate.primal) - 1)
    assert moved > 1e-5 >= rounded.certificate.relative_gap
    with pytest.warns(PrecisionWarning, match="at C = 1e.05 is that of kernel"):
        jaxsvm.solve_path(jaxsvm.hinge_problem(gram, y), [0.1, 1e5], tol=1e-3)
    for kernel, C, tol in ((RBF(gamma=1e-2), 1.0, 1e-4), (Linear(), 1e3, 1e-4)):
        with warnings.catch_warnings(action="error", category=PrecisionWarning):
            jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(kernel, x), y, C), tol=tol)


def test_what_is_said_of_rounded_kernel_values_is_the_gap_with_exact_ones():
    """An estimate was 25 to 5,000 times too large, and said as a fact; below it nothing was said of larger gaps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = np.where(x[:, 0] + rng.normal(size=200) > 0, 1.0, -1.0)
    with pytest.warns(PrecisionWarning) as told:
        fit = jaxsvm.fit(jaxsvm.hinge_problem(jaxsvm.gram(RBF(gamma=1e-2), x), y, 1e3), tol=1e-5)
    true = gap_of(np.exp(-1e-2 * np.square(x[:, None].astype(float) - x).sum(axis=2)), y, 1e3, fit, "regularized")
    said = float(str(told[0].message).split("is about ")[1].split(",")[0])
    assert said == pytest.approx(true, rel=0.1) and said > 1e-5


@pytest.mark.parametrize(("nu", "most"), [(0.2, 1e-6), (0.15, 1e-5)])
def test_a_nu_fit_is_compared_with_exact_kernel_values_at_the_cost_that_it_stands_for(nu, most):
    """It was as if it were a hinge's fit at C = 1: of a gap of 1e-6 the warning said 7.6, at nu = 0.15 2,300."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(150, 5))
    x[x < -0.3] = 0
    y = np.where(x @ rng.normal(size=5) + 0.5 * rng.normal(size=150) > 0.2, 1, -1)
    x = x.astype(np.float32)
    problem = jaxsvm.nu_problem(jaxsvm.gram(RBF(gamma=0.4), x), y, nu)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit = jaxsvm.fit(problem, tol=1e-6)
    said = [str(each.message) for each in told if each.category is PrecisionWarning]
    assert len(said) == (most > 1e-6)
    K = np.exp(-0.4 * np.square(x[:, None].astype(float) - x).sum(axis=2))
    hinge = dataclasses.replace(fit, alpha=abs(fit.dual_coef))
    gap = gap_of(K, y, float(hinge.alpha.max()), hinge, "free")
    assert 0 < gap < most
    for text in said:
        assert float(text.split("is about ")[1].split(",")[0]) == pytest.approx(gap, rel=0.1)


def test_the_tolerance_of_a_fit_may_be_differentiated():
    """It is read on the host, also where a user's function of it is traced for derivatives."""
    x, y = np.eye(4, dtype=np.float32), np.array([1, -1, 1, -1])
    problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(1.0), x), y)
    assert jax.grad(lambda tol: jaxsvm.fit(problem, jaxsvm.SMO(tol=tol)).certificate.primal)(1e-3) == 0


def unscaled(n=300):
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(n, 6))
    y = np.sign(normal @ rng.normal(size=6) + 0.8 * rng.normal(size=n))
    return np.float32(normal * [1, 1e3, 1e5, 0.01, 1, 10] + [0, 5e3, 1e6, 0, 3, 50]), y


def test_negative_curvature_of_a_definite_kernel_is_rounding_and_proves_nothing(monkeypatch):
    x, y = unscaled()
    patient = dataclasses.replace(bursts.MEASURED, steps_before_hopeless=10**9)  # it shows after some 250,000 steps
    monkeypatch.setattr(bursts, "MEASURED", patient)
    with pytest.warns(jaxsvm.ConvergenceWarning, match="float64"):
        fit = jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(RBF(1e-10), x), y, 1e9))
    assert fit.status.name == "STALLED" and np.isinf(fit.certificate).all()


@pytest.mark.thorough
def test_a_fit_that_stalls_is_not_worse_than_no_function_at_all():
    x, y = unscaled()
    with pytest.warns(jaxsvm.ConvergenceWarning, match="scale features"):
        fit = jaxsvm.fit(jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, 1e6, bias="free"))
    assert fit.status.name == "STALLED"
    assert fit.certificate.primal <= 1e6 * len(y) and fit.certificate.dual >= 0


@pytest.mark.parametrize("largest", [1024, 8])
def test_curvature_is_that_of_the_samples_present_and_of_the_moves_they_have(monkeypatch, largest):
    """By a factor, and by Lanczos' values; against the eigenvalues by construction."""
    from jaxsvm.problems.certificates import definiteness

    monkeypatch.setattr(definiteness, "MEASURED", dataclasses.replace(definiteness.MEASURED, samples_factored=largest))
    n, rng = 40, np.random.default_rng(0)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)

    def negative(Q, everywhere=True, weight=None):
        gram = jaxsvm.gram(jaxsvm.kernels.Precomputed(), np.outer(y, y) * Q)
        bias = "none" if everywhere else "free"
        problem = jaxsvm.hinge_problem(gram, y, 1.0, bias=bias, sample_weight=weight)
        return bool(definiteness.negative_curvature(problem, everywhere=everywhere))

    z = rng.normal(size=(n, 2))
    assert not negative(z @ z.T)  # eigenvalues of 0
    assert negative(np.eye(n) - 0.5 * np.outer(z[:, 0], z[:, 0]))
    assert negative(np.diag(np.append(-0.002, np.linspace(0.1, 1, n - 1))))  # which six products of Lanczos miss
    x = np.geomspace(1, 1e15 if jnp.ones(()).dtype == jnp.float32 else 1e120, n)[:, None]  # its powers overflow
    overflows = jaxsvm.hinge_problem(jaxsvm.gram(Polynomial(3), x), y)
    assert not definiteness.negative_curvature(overflows, everywhere=True)
    signs = np.sign(np.sin(np.arange(n) + 0.5))
    assert not negative(np.outer(signs, signs) * 0.95 * float(jnp.finfo(jnp.ones(()).dtype).max))  # its products do
    one = np.eye(n)
    one[0, 1] = one[1, 0] = 2.0
    assert negative(one)
    assert not negative(one, weight=np.arange(n) != 1)
    u = y / np.sqrt(n)  # off the equality y'a = 0
    assert not negative(np.eye(n) - 2 * np.outer(u, u), everywhere=False)
    assert negative(np.eye(n) - 2 * np.outer(u, u))


HIDDEN = {
    "by itself": lambda product, a: product(a, a),
    "with a vector": lambda product, a: jax.jit(product)(a, a[0]),
    "in lanes": lambda product, a: jax.jit(jax.vmap(product, (0, None)))(a, a[0]),
    "in a loop": lambda product, a: jax.lax.fori_loop(0, 2, lambda _, b: product(a, b), a),
    "in a branch": lambda product, a: jax.lax.cond(a.sum() > 0, product, lambda a, b: a, a, a),
    "as a derivative": lambda product, a: jax.jit(jax.jacobian(lambda b: product(b, b)))(a[0]),
    "in float64": lambda product, a: jax.jit(in_double(lambda a: product(a, a)))(a),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_no_product_with_fewer_digits_than_its_dtype_goes_unseen(name):
    """The watcher of all tests, on a line that pretends to be the library's, and on one of a user."""
    product = eval(compile("lambda a, b: a @ b", str(lowered.HOUSE / "example.py"), "eval"))  # noqa: S307
    a = jnp.arange(961.0).reshape(31, 31)  # a size that no other test has
    with pytest.raises(AssertionError, match=r"example\.py:1"):
        HIDDEN[name](product, a)
    HIDDEN[name](lambda a, b: a @ b, a)
    jax.jit(product)(a[0], a[1]), jax.jit(product)(a.astype(int), a.astype(int))


REFUSED = (AssertionError, jax.errors.JaxRuntimeError)  # here; on a GPU by JAX's own guard


def test_no_constant_that_would_be_copied_from_a_device_goes_unseen():
    a = jnp.arange(31.0)
    with lowered.without_reading_back():
        with jax.transfer_guard("disallow"), pytest.raises(REFUSED, match="on a device|device-to-host"):
            jax.jit(jax.vmap(in_double(lambda b: a + b)))(a)
        jax.device_get(a)
        with jax.transfer_guard("disallow"):
            jax.jit(lambda b: a + b)(a)


def test_bounds_that_rounded_kernel_values_take_off_the_optimum_are_said():
    """The point is right to 5e-6, both bounds are 1.4e-3 above the optimum; of a fit that stalls nothing was said."""
    rng = np.random.default_rng(2)
    x = (0.1 * rng.normal(size=(24, 4))).astype(np.float32)
    y = np.where(x[:, 0] + 0.05 * rng.normal(size=24) > 0, 1.0, -1.0)
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(0.01), x), y, 5e4)
    for solver, status in ((jaxsvm.FrankWolfe(tol=1e-4), "CONVERGED"), (jaxsvm.Newton(tol=1e-12), "STALLED")):
        with warnings.catch_warnings(record=True, action="always") as told:
            assert jaxsvm.fit(problem, solver).status.name == status
        (said,) = [str(one.message) for one in told if one.category is PrecisionWarning]
        told_gap = float(re.search(r"about (\S+), or these bounds are off by it", said)[1])
        assert 1e-3 < told_gap < 4e-3  # 1.4e-3 on CPUs; 2.8e-3 on a GPU, whose fit is rounded otherwise
