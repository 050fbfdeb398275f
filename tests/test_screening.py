"""Safe screening: every rule against exact solutions, the paper's formulas, and hostile references."""

import dataclasses
import functools
import subprocess
import sys
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import samples
import scipy.sparse
from oracle_hinge import box_solution
from references import disturbed, fit_of, published_balls, published_dome, published_intersection
from screening_theorems import theorems
from sklearn.svm import LinearSVC
from test_path import kernel_of

import jaxsvm
from jaxsvm import Status
from jaxsvm.gram.operators import among
from jaxsvm.kernels import RBF, Linear, Precomputed
from jaxsvm.loop import small
from jaxsvm.path.chains import first_point, products_of
from jaxsvm.screening import (
    ball_test_1,
    ball_test_2,
    dvi,
    gap_safe,
    intersection_test,
    reference,
    rules,
    two_sided_test,
)

N = samples.N
RULES = {"ball 1": ball_test_1, "ball 2": ball_test_2, "intersection": intersection_test, "gap safe": gap_safe}
"""A new one is tested by joining."""
LOSSES = ("hinge", "squared")
SQUARED_SLOW = ["hinge", pytest.param("squared", marks=pytest.mark.slow)]
"""Where the other loss only costs programs."""


def linear_gram():
    return jaxsvm.gram(Linear(), samples.data()[0], store=True)


SHARP = 30.0
GRAMS = {
    "rbf": samples.gram(),
    "linear": linear_gram(),
    "sharp": jaxsvm.gram(RBF(SHARP), samples.data()[0], store=True),  # separates the classes: nothing has a loss
}
"""Made here, since whoever asks first may be traced."""


def make(loss, C, name="rbf", bias="none", **options):
    build = jaxsvm.hinge_problem if loss == "hinge" else jaxsvm.svm_problem
    return build(GRAMS[name], samples.data()[1], C, bias=bias, **options)


@functools.cache
def signed(name="rbf", bias="none"):
    """`Q` in float64, by NumPy."""
    x, y = samples.data()
    K = {
        "rbf": samples.kernel_matrix,
        "linear": lambda: x @ x.T,
        "sharp": lambda: oracle.kernel_matrix("rbf", x, gamma=SHARP),
    }[name]()
    return np.outer(y, y) * (K + (bias == "regularized"))


def exact_at(Q, costs, loss):
    if loss == "hinge":
        return box_solution(Q, np.ones(len(Q)), costs).a
    return oracle.solve_svm(Q, np.ones(len(Q)), 1.0, weight=costs, bias=False).dual_coef


@functools.cache
def solution(C, loss="hinge", name="rbf", bias="none"):
    a = exact_at(signed(name, bias), np.full(N, C), loss)
    return a, signed(name, bias) @ a


def reference_at(C, loss="hinge", name="rbf", bias="none", gap=0.0, seed=0):
    noise = np.random.default_rng(seed).normal(size=N)
    how = {"dtype": "float64", "hinge": loss == "hinge"}
    Q = signed(name, bias)
    a = disturbed(Q, solution(C, loss, name, bias)[0], np.full(N, C), gap, noise, **how)
    return fit_of(samples.data()[1], a, Q, offset=float(bias == "regularized"), **how)


def assert_safe(found, a, p, costs, loss="hinge", slack=1e-9):
    """Bounds bracket the exact margins, and nothing is decided that is not so."""
    lower, upper, inactive, at_bound = (np.asarray(part) for part in found)
    bound = costs if loss == "hinge" else np.full(len(a), a.max() + 1e-300)
    assert (lower <= p + slack).all()
    assert (upper >= p - slack).all()
    assert not (inactive & (a > 1e-6 * bound)).any()
    assert not (inactive & (p <= 1 - slack)).any()
    assert not (at_bound & (a < bound * (1 - 1e-6))).any()
    assert not (at_bound & (p >= 1 + slack)).any()
    assert not (inactive & at_bound).any()


# --- what every rule promises


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", RULES)
def test_rules_are_safe_and_bounds_bracket(name, loss):
    for C, C_ref in ((2.2, 2.0), (2.0, 2.0), (1.5, 2.0), (20.0, 2.0), (0.02, 0.01), (1e4, 1e3)):
        for gap in (0.0, 1e-6, 1e-3, 1e-1):
            found = RULES[name](make(loss, C), reference_at(C_ref, loss, gap=gap), C_ref)
            assert_safe(found, *solution(C, loss), np.full(N, C), loss)


@pytest.mark.parametrize("loss", LOSSES)
def test_rules_find_most_of_what_there_is_to_find(loss):
    C, C_ref = 2.02, 2.0
    found = intersection_test(make(loss, C), reference_at(C_ref, loss), C_ref)
    _, p = solution(C, loss)
    there = (np.abs(p - 1) if loss == "hinge" else p - 1) > 1e-6
    assert 0.75 * there.sum() <= int(found.screened.sum()) <= there.sum()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_intersection_dominates_both_balls_exactly(loss):
    for C, C_ref, gap in ((2.2, 2.0, 0.0), (2.2, 2.0, 1e-3), (1.0, 2.0, 1e-2), (1e4, 1e3, 0.0), (0.01, 0.01, 0.0)):
        fit, problem = reference_at(C_ref, loss, gap=gap), make(loss, C)
        both = intersection_test(problem, fit, C_ref)
        for rule in (ball_test_1, ball_test_2):
            one = rule(problem, fit, C_ref)
            assert (both.lower >= one.lower).all()
            assert (both.upper <= one.upper).all()
            assert not (one.screened & ~both.screened).any()


@pytest.mark.parametrize("name", ["rbf", "linear"])
def test_published_formulas_are_ours_for_an_exact_reference(name):
    for C_ref, C in ((0.5, 0.6), (2.0, 2.5), (2.0, 1.6)):
        a, fit, problem = solution(C_ref, name=name)[0], reference_at(C_ref, name=name), make("hinge", C, name)
        Q, size = signed(name), np.sqrt(signed(name).diagonal())
        first, second, _ = published_balls(Q, a, C_ref, C)
        for rule, (centre, square) in ((ball_test_1, first), (ball_test_2, second)):
            found, reach = rule(problem, fit, C_ref), np.sqrt(max(square, 0)) * size
            np.testing.assert_allclose(found.lower, centre - reach, atol=1e-5)
            np.testing.assert_allclose(found.upper, centre + reach, atol=1e-5)
        found, published = intersection_test(problem, fit, C_ref), published_intersection(Q, a, C_ref, C)
        np.testing.assert_allclose(found.lower, published[0], atol=1e-5)
        np.testing.assert_allclose(found.upper, published[1], atol=1e-5)


def test_nothing_on_the_margin_is_screened_once_nothing_has_a_loss():
    """Two balls that touch in the solution: bounds shrink with the reference's gap, and rounding decides nothing."""
    C_ref = 50.0
    a, p = solution(C_ref, name="sharp")
    assert p.min() > 1 - 1e-9
    assert 0 < (p > 1 + 1e-3).sum() < N
    for C, gap in ((55.0, 0.0), (1e4, 0.0), (55.0, 1e-10), (55.0, 1e-6)):
        fit, problem = reference_at(C_ref, name="sharp", gap=gap), make("hinge", C, "sharp")
        found = intersection_test(problem, fit, C_ref)
        assert_safe(found, a, p, np.full(N, C))
        assert np.median(np.asarray(found.upper - found.lower)) <= 1e-4 * C / C_ref + 10 * np.sqrt(
            C / C_ref * gap * a.sum()
        )
    problem, fit = make("hinge", 55.0, "sharp"), reference_at(C_ref, name="sharp")
    assert int(intersection_test(problem, fit, C_ref).screened.sum()) == (p > 1 + 1e-3).sum()


# --- the beginning


def test_a_chain_begins_with_the_products_of_the_point_that_is_returned():
    """Adversarial path 75 of seed 101: they were of bounds that were not rounded, and were multiplied along with C."""
    x, y = samples.data()
    gram = jaxsvm.gram(RBF(0.5), x.astype(np.float32), store=True)
    problem = jaxsvm.hinge_problem(gram, y, 1e-5 / 3, sample_weight=np.arange(N) % 4)
    point = first_point(problem, jaxsvm.SMO(tol=1e-3))
    carried, own = point.products[1], products_of(problem, point.points[1])
    assert float(point.points.max()) > 0
    np.testing.assert_allclose(carried, own, rtol=1e-12)


# --- whatever the reference is


def test_a_reference_of_nothing_and_its_own_c():
    nothing = fit_of(samples.data()[1], np.zeros(N), signed(), offset=0.0, dtype="float64", hinge=True)
    for C in (1e-3, 2.0):
        for rule in RULES.values():
            assert_safe(rule(make("hinge", C), nothing, 2.0), *solution(C), np.full(N, C))
            assert_safe(rule(make("hinge", C), nothing), *solution(C), np.full(N, C))
    same = ball_test_1(make("hinge", 2.0), reference_at(2.0), 2.0)
    np.testing.assert_allclose(same.lower, solution(2.0)[1], atol=1e-5)


BROKEN = {
    "nan": lambda fit: jax.tree.map(lambda leaf: leaf * jnp.nan if leaf.dtype == "float64" else leaf, fit),
    "inf": lambda fit: jax.tree.map(lambda leaf: leaf + jnp.inf if leaf.dtype == "float64" else leaf, fit),
    "alpha": lambda fit: dataclasses.replace(fit, alpha=fit.alpha * jnp.nan),
    "some alpha": lambda fit: dataclasses.replace(fit, alpha=jnp.asarray(fit.alpha).at[::2].set(jnp.nan)),
    "coef": lambda fit: dataclasses.replace(fit, dual_coef=fit.dual_coef * jnp.inf),
    "margins": lambda fit: dataclasses.replace(fit, margins=fit.margins * jnp.nan),
    "huge margins": lambda fit: dataclasses.replace(fit, margins=jnp.full(N, jnp.inf)),
    "negative": lambda fit: dataclasses.replace(fit, alpha=-fit.alpha, dual_coef=-fit.dual_coef),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", BROKEN)
def test_broken_references_decide_nothing_wrong(name, loss):
    fit, C = BROKEN[name](reference_at(2.0, loss)), 2.1
    for rule in RULES.values():
        found = rule(make(loss, C), fit, 2.0)
        assert_safe(found, *solution(C, loss), np.full(N, C), loss)
        if name in ("nan", "inf"):
            assert not found.screened.any()


def w_of_its_own(C_ref, size, seed=5):
    noise = np.random.default_rng(seed).normal(size=N)
    a = np.clip(solution(C_ref)[0] + size * C_ref * noise, 0, C_ref)
    w = a + size * C_ref * noise[::-1]
    return fit_of(samples.data()[1], a, signed(), offset=0.0, dtype="float64", hinge=True, w=w), w, a


@pytest.mark.parametrize("size", [1e-9, 1e-4, 1e-2])
def test_the_ball_is_that_of_the_fits_own_w_and_of_its_dual_point(size):
    """Its formula in long double; and all rules are safe, those of intervals at every C between."""
    Q, long = signed().astype(np.longdouble), np.longdouble
    for C_ref, C in ((2.0, 2.1), (2.0, 1.9), (50.0, 51.0)):
        fit, w, a = w_of_its_own(C_ref, size)
        p, dual = Q @ w.astype(long), (C / C_ref) * a.astype(long)
        apart = w - dual
        missed = (C - dual) @ np.maximum(1 - p, 0) + dual @ np.maximum(p - 1, 0)
        reach = np.sqrt((apart @ Q @ apart / 4 + missed) * Q.diagonal())
        found = ball_test_1(make("hinge", C), fit, C_ref)
        np.testing.assert_allclose(found.lower, ((p + Q @ dual) / 2 - reach).astype(float), atol=1e-6)
        np.testing.assert_allclose(found.upper, ((p + Q @ dual) / 2 + reach).astype(float), atol=1e-6)
        for rule in RULES.values():
            for named in (C_ref, None):
                assert_safe(rule(make("hinge", C), fit, named), *solution(C), np.full(N, C))
        other = w_of_its_own(1.1 * C_ref, size)[0]
        assert_safe(
            two_sided_test(make("hinge", C_ref), fit, other, C_ref, 1.1 * C_ref), *solution(C_ref), np.full(N, C_ref)
        )


@pytest.mark.parametrize("far", [0.0, 900.0])
def test_in_float32_rules_know_what_a_fit_of_a_linear_kernel_has_proven(far):
    """They knew nothing at large C: the w that was certified is not that of the rounded dual point. `far` from the
    origin stored values are no semidefinite matrix; what is solved, certified and screened is that of the points."""
    with jax.enable_x64(False):
        x, y = samples.data()
        x = (x + far).astype(np.float32)
        C_ref, C, solver = (1e4, 1.02e4, jaxsvm.InteriorPoint(tol=1e-7)) if far == 0 else (0.1, 0.11, None)
        Q = np.outer(y, y) * (x.astype(float) @ x.T.astype(float) + 1)
        a = exact_at(Q, np.full(N, float(np.float32(C))), "hinge")
        gram = jaxsvm.gram(Linear(), x, store=True)
        problem = jaxsvm.hinge_problem(gram, y, C)
        below, above = (jaxsvm.fit(problem.at(at), solver) for at in (C_ref, 1.04 * C_ref))
        for rule in (intersection_test, gap_safe):
            found = rule(problem, below, C_ref)
            assert_safe(found, a, Q @ a, np.full(N, C), slack=1e-6)
            assert far or int(found.screened.sum()) >= 50
        found = two_sided_test(problem, below, above, C_ref, 1.04 * C_ref)
        assert_safe(found, a, Q @ a, np.full(N, C), slack=1e-6)
        assert far or int(found.screened.sum()) >= 30
        assert far == 0 or np.linalg.eigvalsh(np.asarray(gram.K, float))[0] < -1e-2


@pytest.mark.parametrize("loss", SQUARED_SLOW)
def test_a_reference_with_another_bias_is_a_reference_all_the_same(loss):
    """Margins that hold a constant which is not in the problem's w are not taken for those of its w."""
    x, y = samples.data()
    x, hinge = x + np.array([6.0, 0.0]), loss == "hinge"
    gram, solver = jaxsvm.gram(Linear(), x, store=True), jaxsvm.SMO(tol=1e-8) if hinge else jaxsvm.Newton(tol=1e-8)
    build = jaxsvm.hinge_problem if hinge else jaxsvm.svm_problem
    for C, other in ((1.0, "free"), (1.0, "none"), (1.0, "regularized"), (0.1, "free")):
        fit = jaxsvm.fit(build(gram, y, C, bias=other), None if other != "free" else solver)
        for bias in {"none", "regularized"} - {other}:
            Q = np.outer(y, y) * (x @ x.T + (bias == "regularized"))
            a = exact_at(Q, np.full(N, C), loss)
            found = ball_test_1(build(gram, y, C, bias=bias), fit, C)  # all rules know references alike
            assert_safe(found, a, Q @ a, np.full(N, C), loss, 1e-6)


@pytest.mark.parametrize("loss", SQUARED_SLOW)
def test_weights_and_absent_samples(loss):
    rng = np.random.default_rng(1)
    weight = np.exp(rng.normal(size=N)) * (np.arange(N) % 5 > 0)
    for C_ref, C in ((2.0, 2.2), (2.0, 1.0), (30.0, 31.0)):
        before, after = (exact_at(signed(), C * weight, loss) for C in (C_ref, C))
        problem = make(loss, C, sample_weight=weight)
        fit = fit_of(samples.data()[1], before, signed(), offset=0.0, dtype="float64", hinge=loss == "hinge")
        for rule in RULES.values():
            for named in (C_ref, None):
                found = rule(problem, fit, named)
                assert not np.asarray(found.screened)[weight == 0].any()
                keep = weight > 0
                part = jax.tree.map(lambda leaf: np.asarray(leaf)[keep], found)  # noqa: B023
                assert_safe(part, after[keep], (signed() @ after)[keep], C * weight[keep], loss)


INDEFINITE = [
    [0.952, -0.908, 0.028, 0.488],
    [-0.908, 0.305, -0.191, 0.33],
    [0.028, -0.191, 0.535, 0.041],
    [0.488, 0.33, 0.041, 2.553],
]


def test_on_an_indefinite_kernel_nothing_is_known():
    """Refused where the matrix can be looked at, by rules, paths and reports; under tracing rules are silent."""
    y = np.array([1.0, -1.0, 1.0, -1.0])

    def problem(K):
        return jaxsvm.hinge_problem(jaxsvm.gram(Precomputed(), np.array(K)), y, 1.0, bias="none")

    soft = problem(0.25 * np.eye(4))
    fit = reference.reference_fit(soft, jnp.full(4, 0.9), jnp.full(4, 0.225))

    def both(problem, fit, C_ref):
        return two_sided_test(problem, fit, fit, C_ref, 2 * C_ref)

    for rule in (*RULES.values(), both):
        with pytest.raises(jaxsvm.InputError, match="not positive semidefinite"):
            rule(problem(INDEFINITE), fit, 0.9)
        assert not jax.jit(rule)(problem(INDEFINITE), fit, 0.9).screened.any()
    assert ball_test_1(soft, fit, 0.9).at_bound.all()  # a matrix that is one is looked at, and taken
    with pytest.raises(jaxsvm.InputError, match="not positive semidefinite"):
        jaxsvm.solve_path(problem(INDEFINITE), [0.5, 1.0], screen=ball_test_1)


def test_what_is_none_is_refused():
    fit, hinge, epsilon_path = reference_at(2.0), make("hinge", 2.0), jaxsvm.screening.epsilon_path
    other = jaxsvm.hinge_problem(jaxsvm.gram(Linear(), np.eye(4)), [1.0, -1.0, 1.0, -1.0], bias="none")
    nothing = (0.0, -1.0, np.inf, np.nan, "a", np.array([1.0, 2.0]))
    refused = [
        *((ball_test_1, (hinge, fit, C), "C_ref") for C in nothing),
        *((two_sided_test, (hinge, fit, fit, 2.0, C), "C_above") for C in nothing),
        (two_sided_test, (hinge, fit, fit, None, 2.0), "C_below"),
        (ball_test_1, (other, fit, 2.0), "reference has dual variables of shape"),
        (ball_test_1, (jaxsvm.meb_problem(samples.gram()), fit, 2.0), "screening"),
        (two_sided_test, (other, fit, fit, 2.0, 2.0), "below has dual variables of shape"),
        (epsilon_path, (other, "a", 1.0, 2.0), "epsilon"),
        (epsilon_path, (other, 0.1, "a", 2.0), "C_min"),
        (epsilon_path, (GRAMS["rbf"], 0.1, 1.0, 2.0), "hinge_problem"),
        (epsilon_path, (other, 1e-16, 1.0, 2.0), "numbers prove no relative error below 4e-15"),
    ]
    for loss in LOSSES:
        free, reference_fit = make(loss, 2.0, bias="free"), reference_at(2.0, loss)
        refused += [(rule, (free, reference_fit, 2.0), "free bias") for rule in RULES.values()]
        refused += [(two_sided_test, (free, reference_fit, reference_fit, 2.0, 2.0), "free bias")]
    for call, given, word in refused:
        with pytest.raises(jaxsvm.InputError, match=word):
            call(*given)


# --- the rule of two fits


@pytest.mark.parametrize("loss", SQUARED_SLOW)
@pytest.mark.parametrize("gap", [0.0, 1e-6, 1e-2])
def test_the_rule_of_two_fits_is_safe(gap, loss):
    """Between them, at either, and beyond."""
    for below, C, above in ((2.0, 2.1, 2.2), (2.0, 2.0, 2.0), (0.01, 0.5, 100.0), (1e4, 1.1e4, 1.2e4), (2.0, 5.0, 2.2)):
        fits = [reference_at(at, loss, gap=gap) for at in (below, above)]
        found = two_sided_test(make(loss, C), *fits, below, above)
        assert_safe(found, *solution(C, loss), np.full(N, C), loss)
        for fit, at in zip(fits, (below, above), strict=True):
            one = intersection_test(make(loss, C), fit, at)
            assert not (one.screened & ~found.screened).any()


def test_the_rule_of_two_fits_knows_more_than_the_dome_and_than_either_fit():
    more = []
    for name, bias in product(("rbf", "linear"), ("none", "regularized")):
        Q, size = signed(name, bias), np.sqrt(signed(name, bias).diagonal())
        for below, C, above in ((2.0, 2.4, 2.8), (0.5, 0.55, 0.6)):
            fits = [reference_at(at, name=name, bias=bias) for at in (below, above)]
            (a, p), (b, _) = (solution(at, name=name, bias=bias) for at in (below, above))
            low, high = published_dome(p, size, a @ Q @ a, b @ Q @ b)
            problem = make("hinge", C, name, bias)
            found = two_sided_test(problem, *fits, below, above)
            assert not (((low > 1 + 1e-9) | (high < 1 - 1e-9)) & ~np.asarray(found.screened)).any()
            alone = [intersection_test(problem, *pair) for pair in zip(fits, (below, above), strict=True)]
            more.append(int(found.screened.sum()) - int((alone[0].screened | alone[1].screened).sum()))
    assert min(more) >= 0 and sum(more) > 5


@pytest.mark.parametrize("size", [1e-9, 1e-4, 1e-2])
def test_the_mean_of_two_references_is_that_of_their_points(size):
    """Of two fits with a w of their own each: beside long double, and bounds of what rounding may change."""
    Q, share = signed().astype(np.longdouble), 0.3
    (one, w, a), (other, v, b) = w_of_its_own(2.0, size), w_of_its_own(2.4, size, seed=8)
    problem = make("hinge", 2.1)
    parts = (reference.reference_of(problem, fit, C, "float64") for fit, C in ((one, 2.0), (other, 2.4)))
    found = reference.mean_of(*parts, share)
    w, a = (1 - share) * w + share * v, (1 - share) * a + share * b
    assert (np.abs(np.asarray(found.p) - Q @ a) <= np.asarray(found.error)).all()
    assert (np.abs(np.asarray(found.margins) - Q @ w) <= np.asarray(found.margins_error)).all()
    for rho in (0.9, 1.0, 1.1):
        exact = (w - rho * a) @ Q @ (w - rho * a)
        assert exact <= float(found.square(rho)) * (1 + 1e-12)


# --- degenerate data


def degenerate(name):
    x, y = samples.data()
    x, y = x.copy(), y.copy()
    if name == "zero rows":
        x[::4] = 0
    elif name == "duplicates":
        x[N // 2 :], y[N // 2 :] = x[: N // 2], np.where(np.arange(N // 2) % 2, y[: N // 2], -y[: N // 2])
    elif name == "one class":
        y[:] = 1
    elif name == "all zero":
        x[:] = 0
    return x, y


@pytest.mark.parametrize("name", ["zero rows", "duplicates", "one class", "all zero"])
def test_degenerate_data(name):
    x, y = degenerate(name)
    Q, gram = np.outer(y, y) * (x @ x.T), jaxsvm.gram(Linear(), x, store=True)
    for C_ref, C in ((0.01, 0.011), (1.0, 1.2), (50.0, 10.0)):
        before, after = (exact_at(Q, np.full(N, C), "hinge") for C in (C_ref, C))
        fit = fit_of(y, before, Q, offset=0.0, dtype="float64", hinge=True)
        problem = jaxsvm.box_problem(gram, np.ones(N), C, y=y)
        for rule in RULES.values():
            found = rule(problem, fit)  # a box problem's C is a unit of its own
            assert_safe(found, after, Q @ after, np.full(N, C))
            assert np.asarray(found.at_bound)[Q.diagonal() == 0].all()  # a point at the origin always has a loss


# --- programs


def test_rules_under_jit_and_vmap():
    C_ref, Cs = 2.0, jnp.asarray([1.5, 2.0, 2.1, 3.0])
    fit = jax.tree.map(jnp.asarray, reference_at(C_ref))
    problem = make("hinge", 2.0)
    lanes = jax.vmap(lambda C: intersection_test(problem.at(C), fit, C_ref))(Cs)
    traced = jax.jit(lambda C: intersection_test(problem.at(C), fit, C_ref))
    for lane, C in enumerate(Cs):
        alone = intersection_test(problem.at(float(C)), fit, C_ref)
        for other in (traced(C), jax.tree.map(lambda leaf: leaf[lane], lanes)):  # noqa: B023
            np.testing.assert_allclose(other.lower, alone.lower, atol=1e-9)
            assert (other.screened == alone.screened).all()
    fits = [reference_at(at, gap=gap) for at, gap in ((2.0, 0.0), (1.9, 1e-3))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *fits)
    found = jax.vmap(intersection_test, in_axes=(None, 0, 0))(problem, stacked, jnp.asarray([2.0, 1.9]))
    for lane in range(2):
        assert_safe(jax.tree.map(lambda leaf: leaf[lane], found), *solution(2.0), np.full(N, 2.0))  # noqa: B023


def test_nothing_is_differentiated():
    fit = jax.tree.map(jnp.asarray, reference_at(2.0))
    slope = jax.grad(lambda C: ball_test_1(make("hinge", 2.0).at(C), fit, 2.0).lower.sum())(2.1)
    assert float(slope) == 0


# --- paths


def judge(path, Cs, tol):
    """Every value is certified, and its primal and dual are on both sides of the exact optimum, by NumPy."""
    assert list(path.status.name) == ["CONVERGED"] * len(Cs)
    for C, fit in zip(np.asarray(Cs, float), path, strict=True):
        best, reached = (a.sum() - a @ signed() @ a / 2 for a in (solution(C)[0], np.asarray(fit.alpha)))
        assert float(fit.certificate.relative_gap) <= tol
        assert float(fit.certificate.primal) >= best * (1 - 1e-9)
        assert float(fit.certificate.dual) <= best * (1 + 1e-9)
        assert reached >= best * (1 - tol - 1e-9)


SCREENS = {"none": None, "ball 1": ball_test_1, "intersection": intersection_test}
WIDE = np.array([30.0, 1e-4, 0.7, 1e6, 0.7, 0.05, 1e3, 3.0])
"""Unsorted, repeated, from far below C_min to far beyond the last change."""


@pytest.mark.thorough
@pytest.mark.parametrize("screen", SCREENS)
def test_paths_end_at_the_exact_optimum(screen):
    path = jaxsvm.solve_path(make("hinge", 1.0), WIDE, screen=SCREENS[screen], tol=1e-6)
    judge(path, WIDE, 1e-6)


def unstored(kernel):
    return jaxsvm.gram(kernel, samples.data()[0], store=False)


def test_a_tiny_tolerance():
    Cs = [0.1, 0.11, 1.0, 30.0]
    path = jaxsvm.solve_path(make("hinge", 1.0), Cs, screen=intersection_test, tol=1e-11)
    judge(path, Cs, 1e-11)


@pytest.mark.thorough
def test_some_samples_keep_the_features_of_all_and_store_no_more_values():
    """Interior points of a linear kernel became pair steps on `K_SS`, and 60,000 of 100,000 points took 14 GB."""
    x, some = samples.data()[0], np.arange(0, N, 3)
    for gram in (GRAMS["linear"], unstored(Linear()), jaxsvm.gram(RBF(0.5), x, rank=16), unstored(RBF(0.5))):
        part = among(gram, some)
        np.testing.assert_allclose(kernel_of(part), kernel_of(gram)[np.ix_(some, some)], atol=1e-12)
        if gram.design is not None:
            np.testing.assert_array_equal(part.design, gram.design[some])
        assert part.stored == gram.stored
        assert part.memory <= max(gram.memory, 2**28)


@pytest.mark.slow
def test_a_rule_makes_a_stored_matrix_read_no_more():
    """A part was gathered anew for every value, though few of its rows are read: 2.5 times as much was."""
    n, rng = 1100, np.random.default_rng(0)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    gram = jaxsvm.gram(RBF(0.5), 0.5 * y[:, None] + 1.5 * rng.normal(size=(n, 2)), store=True)
    problem, Cs = jaxsvm.hinge_problem(gram, y, bias="none"), np.linspace(2, 3, 20)
    paths = [jaxsvm.solve_path(problem, Cs, screen=screen, tol=1e-4) for screen in (None, ball_test_1)]
    reads = [np.sum(path.fits.kernel_evaluations) for path in paths]
    assert reads[1] <= reads[0]


@pytest.mark.parametrize("step", ["next_start", "solve_kept", "joined"])
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_ctrl_c_within_a_value(monkeypatch, step):
    from jaxsvm.path import carried_chain

    calls, inner = [], getattr(carried_chain, step)

    def pressed(*arguments):
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return inner(*arguments)

    monkeypatch.setattr(carried_chain, step, pressed)
    Cs = np.geomspace(0.5, 10, 6)
    path = jaxsvm.solve_path(make("hinge", 1.0), Cs, screen=intersection_test, tol=1e-6)
    converged = np.asarray(path.status) == Status.CONVERGED
    assert 0 < converged.sum() < len(Cs)
    assert set(np.asarray(path.status)[~converged]) == {Status.INTERRUPTED}
    count = int(converged.sum())
    judge(jax.tree.map(lambda leaf: leaf[:count], path), Cs[:count], 1e-6)


@pytest.mark.parametrize("bias", ["none", "free"])
def test_the_first_value_of_a_chain_is_solved_no_further_than_asked(bias):
    """Its dual objective is that of where it stands: 0 where it starts would ask for everything, to the last bit."""
    asked = jaxsvm.solve_path(make("hinge", 1.0, bias=bias), [1.0], tol=1e-2)
    tight = jaxsvm.solve_path(make("hinge", 1.0, bias=bias), [1.0], tol=1e-9)
    assert int(asked.steps[0]) < int(tight.steps[0])
    assert float(asked.certificate.relative_gap[0]) > 1e-9


@pytest.mark.slow
def test_pieces_of_a_value_leave_what_a_rule_knows_where_it_is(monkeypatch):
    """Samples at their bound were set to 0 from the second piece on, and the whole problem solved again."""
    from jaxsvm.path import carried_chain

    n, whole, inner = 1200, [], carried_chain.drive
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    y = np.where(x[:, 0] + rng.normal(size=n) > 0, 1.0, -1.0)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(5.0), x, store=True), y, 1.0, bias="none")
    measured = dataclasses.replace(carried_chain.MEASURED, samples_times_sets_of_a_piece=n)
    monkeypatch.setattr(carried_chain, "MEASURED", measured)  # a value takes several
    monkeypatch.setattr(carried_chain, "drive", lambda *a, **k: whole.append(a[0]) or inner(*a, **k))
    path = jaxsvm.solve_path(problem, 10 * 1.15 ** np.arange(4), tol=1e-5, screen=intersection_test)
    assert list(path.status.name) == ["CONVERGED"] * 4
    assert {float(problem.C) for problem in whole} <= {10.0}  # where no rule knows anything yet


def test_chains_carry_no_products_where_bounds_differ_by_decades(monkeypatch):
    """`box_problem` has no weights: its bounds are looked at."""
    from jaxsvm.path import solve

    monkeypatch.setattr(solve.CarriedChain, "__init__", None)  # whoever makes one fails
    upper = np.where(np.arange(N) < 3, 1e-6, 1.0)
    problem = jaxsvm.box_problem(GRAMS["rbf"], np.ones(N), upper, y=samples.data()[1])
    assert list(jaxsvm.solve_path(problem, [1.0], tol=1e-3).status.name) == ["CONVERGED"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"callback": 3}, "callback"),
        ({"solver": "smo"}, "solver"),
        ({"solver": jaxsvm.SMO}, "solver"),
        ({"screen": "auto"}, "screen"),
        ({"screen": 3}, "screen"),
        ({"screen": dvi, "lanes": 2}, "lanes"),
    ],
)
def test_arguments_that_are_none_are_refused(options, word):
    with pytest.raises(jaxsvm.InputError, match=word):
        jaxsvm.solve_path(make("hinge", 1.0), [1.0], **options)
    with pytest.raises(jaxsvm.InputError, match="free bias"):
        jaxsvm.solve_path(make("hinge", 1.0, bias="free"), [1.0], screen=dvi)


@pytest.mark.parametrize("Cs", [["a"], [None, 1.0], [1j], [True], [1.0, 1e309], [1.0, 1e308]])
def test_values_that_are_none_are_refused_before_anything_is_solved(Cs):
    """The last one is too large for costs of float64, which was found once the first one had been solved."""
    solved = []
    with pytest.raises(jaxsvm.InputError):
        jaxsvm.solve_path(make("hinge", 1.0), Cs, callback=lambda place, fit: solved.append(place))
    assert not solved
    with pytest.raises(jaxsvm.InputError, match="problem"):
        jaxsvm.solve_path(GRAMS["rbf"], [1.0])


def test_a_wrong_rule_costs_time_and_no_truth():
    """Every answer is certified on all samples."""

    def everything(problem, fit, C_ref):
        found = intersection_test(problem, fit, C_ref)
        return found._replace(inactive=jnp.ones(N, bool) if problem.n == N else jnp.ones_like(found.inactive))

    path = jaxsvm.solve_path(make("hinge", 1.0), [0.1, 1.0], screen=everything, tol=1e-6)
    judge(path, [0.1, 1.0], 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("x64", ["--no-x64", ""])
def test_random_problems(x64):
    """`tests/random_screening.py`: no wrong decision, no broken bound."""
    command = [sys.executable, "tests/random_screening.py", "--count", "240", "--seed", "7", *x64.split()]
    done = subprocess.run(command, cwd=samples.__file__.rsplit("/", 2)[0], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_status_codes_are_read_by_nobody():
    """A fit that did not converge is as good as its gap."""
    fit = dataclasses.replace(reference_at(2.0), status=jaxsvm.results.fit.StatusCode(np.int32(Status.STALLED)))
    assert int(intersection_test(make("hinge", 2.02), fit, 2.0).screened.sum()) > 0


# --- what allowances and formulas are: by long double, for what no solution happens to show


def test_the_ball_of_the_squared_hinge_in_long_double():
    C_ref, C, loss = 2.0, 2.1, "squared"
    fit = reference_at(C_ref, loss, bias="regularized", gap=1e-1)
    Q, a = signed(bias="regularized").astype(np.longdouble), samples.data()[1] * np.asarray(fit.dual_coef)
    p, dual = Q @ a, C / C_ref * a
    above = dual @ np.maximum(p - 1, 0)
    missed = (C / 2 * (np.maximum(1 - p, 0) - dual / C) ** 2).sum() + above
    assert above > 0.01 * missed
    reach = np.sqrt(((C / C_ref - 1) ** 2 * (a @ p) / 4 + missed) * Q.diagonal())
    found = ball_test_1(make(loss, C, bias="regularized"), fit, C_ref)
    np.testing.assert_allclose(found.lower, ((1 + C / C_ref) / 2 * p - reach).astype(float), rtol=1e-9)


def test_the_intersection_allows_for_rounding():
    """By 8 units of both numbers that its centre is the difference of, where neither ball alone is better."""
    turn, unit, zero = np.array([-1.9, 1.9]), 1e-4, jnp.zeros(2)  # two balls that nearly only touch, seen along both
    first, second = reference.Ball(zero, zero, jnp.asarray(1.0)), reference.Ball(zero - turn, zero, jnp.asarray(1.0))
    apart = reference.Difference(zero, zero, jnp.asarray(2 * turn), zero, jnp.asarray(4 * 1.999**2))
    exact, allowed = (reference.intersection_bounds(first, second, apart, jnp.ones(2), u) for u in (0.0, unit))
    for wider in (exact[0] - allowed[0], allowed[1] - exact[1]):
        assert (np.asarray(wider) >= 8 * unit * np.abs(turn)).all()
    first, apart = first._replace(error=zero + unit), apart._replace(error=zero + 4 * unit)
    allowed = reference.intersection_bounds(first, second, apart, jnp.ones(2), 0.0)
    for wider in (exact[0] - allowed[0], allowed[1] - exact[1]):  # by the error of the first, and of half the way or so
        np.testing.assert_allclose(wider, 2 * unit, rtol=0.1)


# --- what is allowed for errors: references whose numbers are wrong by as much as they say


def wrong(exact, moved, error):
    p, error = exact.p + moved, exact.error + error
    return exact._replace(p=p, error=error, W=exact.a @ p + exact.a @ error)


def test_on_the_simplex_nothing_is_known_of_a_sample_whose_product_is_not():
    """Solutions without one sample of the support, whose product is too large, and says so."""
    C, loss = 20.0, "squared"
    problem, (a, _) = make(loss, C), solution(C, loss)
    exact = reference.reference_of(problem, reference_at(C, loss), None, "float64")
    assert rules._outside_on_simplex(problem, exact).any()
    for i in np.flatnonzero(a > 0):
        one = np.arange(N) == i
        rest = np.where(one, 0, a)
        told = wrong(exact._replace(a=rest, p=signed() @ rest), *(10 * a.sum() * one,) * 2)
        assert not rules._outside_on_simplex(problem, told)[i]


def test_errors_of_sums_in_float64_are_within_what_is_allowed():
    """Of numbers that long double knows better."""
    for seed in range(20):
        fit, w, a = w_of_its_own(2.0, 1e-6, seed)
        problem, Q = make("hinge", 2.1), np.asarray(signed()).astype(np.longdouble)
        found = reference.reference_of(problem, fit, 2.0, "float64")
        cross, doubt = np.asarray(found.along)
        assert abs((w - a.astype(np.longdouble)) @ Q @ a - cross) <= doubt
        apart = reference.difference(problem, found)
        delta = np.asarray(apart.delta).astype(np.longdouble)
        assert 0 < float(apart.square) <= delta @ Q @ delta


def test_folds_leave_samples_out_where_no_values_are_stored(monkeypatch):
    """By default; held-out scores are those of exact solutions, fold by fold."""
    from jaxsvm.path import solve

    known, Cs, (_, y) = [], np.geomspace(0.5, 1, 4), samples.data()

    def told(*given):
        known.append(ball_test_1(*given))
        return known[-1]

    monkeypatch.setattr(solve, "ball_test_1", told)
    monkeypatch.setattr(
        small, "MEASURED", dataclasses.replace(small.MEASURED, samples_of_a_small_problem=0)
    )  # as of many samples
    problem, folds = jaxsvm.hinge_problem(unstored(RBF(samples.GAMMA)), y, bias="regularized"), np.arange(N) % 3
    found = jaxsvm.cross_validate(problem, Cs, folds, tol=1e-8)
    assert len(known) >= 6 and sum(int(one.screened.sum()) for one in known) > 20
    Q = signed(bias="regularized")
    for fold, at in product(range(3), range(4)):
        a = exact_at(Q, Cs[at] * (folds != fold), "hinge")
        assert found.scores[fold, at] == pytest.approx(((Q @ a)[folds == fold] > 0).mean())


# --- the paper's statements


@pytest.mark.parametrize("seed", [0, 5])
def test_the_papers_theorems_hold(seed):
    """NC1 to NC3, Theorems 6 to 8, Lemma 9, the dome; where it is corrected, in the corrected form."""
    found = theorems(seed)
    assert max(found[f"T{k}"] for k in (1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)) < 1e-6, found


# --- what is left, for any solver


@pytest.mark.parametrize("sparse", [False, True])
def test_any_solver_finds_the_whole_solution_in_the_rows_that_are_left(sparse):
    """LIBLINEAR, with weights, and with a bias as a column of ones; samples at their bound are one row."""
    x, y = samples.data()
    x, weight, C_ref, C = np.c_[x, np.ones(N)], 1.0 + np.arange(N) % 3, 0.2, 0.22
    Q = np.outer(y, y) * (x @ x.T)
    before = exact_at(Q, C_ref * weight, "hinge")
    fit = fit_of(y, before, Q, offset=1.0, dtype="float64", hinge=True)
    problem = jaxsvm.hinge_problem(linear_gram(), y, C, sample_weight=weight)
    found = intersection_test(problem, fit, C_ref)
    given = scipy.sparse.csr_matrix(x) if sparse else x
    rows, labels, left = found.rows(given, y, weight)
    assert found.inactive.any() and found.at_bound.sum() > 1
    assert rows.shape[0] == len(labels) == N + 1 - int(found.screened.sum())
    model = LinearSVC(loss="hinge", fit_intercept=False, C=C, tol=1e-10, max_iter=10**6, random_state=0)
    w = model.fit(rows, labels, left).coef_[0]
    np.testing.assert_allclose(w, x.T @ (y * exact_at(Q, C * weight, "hinge")), atol=1e-5)
    nothing = found._replace(at_bound=np.zeros(N, bool))
    assert nothing.rows(x, y)[0].shape[0] == N - int(found.inactive.sum())
