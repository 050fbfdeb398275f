"""The one judge of certificates: what it refuses, whoever made the point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
from oracle import solve_svm
from oracle_hinge import box_solution
from scipy.optimize import linprog
from test_contract import PROBLEMS, each, problem, solved

from jaxsvm import gram, hinge_problem, svm_problem
from jaxsvm.kernels import Precomputed
from jaxsvm.results.fit import Answer, Certificate, Counters, Status, Values
from jaxsvm.results.judge import (
    balances,
    better_answer,
    concluded,
    is_weights,
    judged,
    narrowed,
    refused,
    relative_to,
    verdict,
)

INFINITE = Certificate(np.inf, -np.inf, np.inf)


def said(*values, **options):
    return tuple(float(value) for value in judged(*(np.float64(value) for value in values), **options))


def test_a_gap_is_that_of_primal_and_dual():
    assert said(3.0, 2.0, 1.0, 2.0, rounding=0.0) == (3.0, 2.0, 0.5)
    assert said(0.0, 0.0, 0.0, 0.0, rounding=0.0) == (0.0, 0.0, 0.0)
    assert said(3.0, -1.0, 4.0, -1.0, rounding=0.0) == (3.0, -1.0, np.inf)
    assert said(3.0, 0.0, 3.0, 0.0, rounding=0.0) == (3.0, 0.0, np.inf)


def test_a_dual_above_the_primal_is_rounding_or_no_certificate():
    assert said(2.0, 2.0 + 1e-15, -1e-15, 2.0, rounding=1e-14)[2] == 0
    assert said(2.0, 2.1, -0.1, 2.0, rounding=1e-14) == INFINITE


@pytest.mark.parametrize("place", range(4))
def test_nothing_is_certified_of_nan(place):
    values = [3.0, 2.0, 1.0, 2.0]
    values[place] = np.nan
    assert said(*values, rounding=0.0)[2] == np.inf or place == 0
    assert not said(1.0, 1.0, np.nan, 1.0, rounding=0.0)[2] <= 1e9


def test_an_infeasible_point_or_a_wrong_matrix_has_no_certificate():
    assert said(3.0, 2.0, 1.0, 2.0, rounding=0.0, feasible=np.bool_(False)) == INFINITE
    kept = Certificate(*(jnp.asarray(value) for value in (3.0, 2.0, 0.5)))
    assert tuple(map(float, refused(kept, True))) == INFINITE
    assert tuple(map(float, refused(kept, False))) == (3.0, 2.0, 0.5)
    assert float(relative_to(kept, 10.0).relative_gap) == 0.1
    assert float(relative_to(refused(kept, True), 10.0).relative_gap) == np.inf


def test_a_verdict_asks_for_the_gap_finite_numbers_and_a_definite_matrix():
    good = Certificate(3.0, 2.0, 1e-4)
    cases = {
        Status.CONVERGED: (good, True, True),
        Status.STALLED: (good._replace(relative_gap=2e-4), True, True),
        Status.NOT_PSD: (good, True, False),
        Status.NOT_FINITE: (good, False, True),
    }
    for status, (certificate, finite, definite) in cases.items():
        assert verdict(certificate, 1e-4, finite=finite, definite=definite) == status
        traced = jax.jit(lambda *parts: verdict(Certificate(*parts[:3]), 1e-4, finite=parts[3], definite=parts[4]))
        assert traced(*certificate, finite, definite) == status
    assert verdict(cases[Status.STALLED][0], 1e-4, finite=True, definite=True, otherwise=Status.CONVERGED) == 2
    for empty in (good._replace(primal=np.inf), good._replace(dual=np.nan), good._replace(relative_gap=np.nan)):
        assert verdict(empty, 1e-4, finite=True, definite=True, otherwise=Status.MAX_STEPS) == Status.MAX_STEPS


def test_values_out_of_range_stay_on_their_side():
    """A primal of -1e43 is no -infinity, which no decision function reaches."""
    for value in (-1e43, 1e43):
        wide = Certificate(*(jnp.asarray(v) for v in (value, value, 1e-7)))
        primal, dual, gap = narrowed(wide, jnp.dtype("float32"))
        assert float(dual) <= value <= float(primal) and gap.dtype == jnp.float32
        assert np.isinf([float(primal), float(dual)]).sum() == 1


def test_weights_are_not_negative_and_those_of_absent_samples_are_0():
    present = jnp.array([True, True, False])
    assert is_weights(jnp.array([1.0, 0.0, 0.0]), present)
    for alpha in ([1.0, -0.1, 0.0], [1.0, 0.0, 0.1], [np.nan, 0.0, 0.0], [1.0, 0.0, np.nan]):
        assert not is_weights(jnp.array(alpha), present)


def test_an_equality_is_met_but_for_rounding():
    assert balances(jnp.asarray(1e-3), jnp.asarray(1e3), jnp.dtype("float32"))
    assert balances(jnp.asarray(0.0), jnp.asarray(0.0), jnp.dtype("float64"))
    assert not balances(jnp.asarray(1e-3), jnp.asarray(1e3), jnp.dtype("float64"))
    assert not balances(jnp.asarray(np.nan), jnp.asarray(1.0), jnp.dtype("float64"))


@pytest.mark.parametrize("level", [False, True])
def test_the_better_w_is_certified_with_the_better_dual_point(level):
    def answer(mark, *bounds):
        upper, lower = map(jnp.asarray, bounds)
        return Answer(*[jnp.asarray(mark)] * 5, Certificate(upper, lower, (upper - lower) / lower))

    for new, old, swapped in ((answer(1.0, 3.0, 1.0), answer(2.0, 4.0, 2.0), level),
                              (answer(1.0, 4.0, 2.0), answer(2.0, 3.0, 1.0), not level)):  # fmt: skip
        best = better_answer(new, old, False, level)
        np.testing.assert_allclose(best.certificate, (3.0, 2.0, 0.5), rtol=1e-14)
        assert best.certificate.relative_gap - 0.5 >= 8 * np.finfo(float).eps  # by the rounding of the difference
        assert (best.dual_coef, best.alpha) == ((2.0, 1.0) if swapped else (1.0, 2.0))


def test_what_is_not_finite_or_not_definite_keeps_no_certificate():
    for value, definite, code in (
        (1.0, True, Status.CONVERGED),
        (1.0, False, Status.NOT_PSD),
        (np.nan, True, Status.NOT_FINITE),
    ):
        answer = Answer(*[jnp.asarray(value)] * 5, Certificate(*map(jnp.asarray, (3.0, 2.0, 0.5))))
        fit = concluded(answer, 1.0, Counters(*[jnp.zeros(2, jnp.int32)] * 7), definite=definite)
        assert int(fit.status) == code
        assert tuple(map(float, fit.certificate)) == ((3.0, 2.0, 0.5) if code == Status.CONVERGED else INFINITE)
        assert fit.alpha == fit.bias == (1.0 if value == 1 else 0.0)


def wrong_points(name):
    """A solved point with weight on a sample that is absent, off its equality, or off the simplex."""
    kind, here, fit = PROBLEMS[name], problem(name), solved(name)
    point = fit.alpha if kind.rows == 1 else jnp.stack([here.y * fit.dual_coef, fit.alpha])
    mask = np.ones(here.n)
    mask[int(np.argmax(np.asarray(fit.alpha)))] = 0
    yield here.weighted(mask), point
    if here.free_bias or name == "ball":
        part = np.ones(here.n) if name == "ball" else np.where(np.asarray(here.y) > 0, 1, 0)
        yield here, point * (1 + 1e-4 * part)


@each({name: kind for name, kind in PROBLEMS.items() if not kind.signed})
def test_no_problem_certifies_weight_on_an_absent_sample_or_off_an_equality(name):
    for here, point in wrong_points(name):
        certificate = here.certified(point, here.matvec(point), here.dtype).certificate
        assert certificate.relative_gap == np.inf
        assert certificate.dual == -np.inf or certificate.primal == np.inf


def test_a_loss_that_rounding_makes_is_allowed_for():
    """At a cost of 1e22 a margin that is off by 2e-16 costs more than the whole objective."""
    here = problem("svm, free bias").at(1e22)
    beta = here.feasible_point(jnp.ones(here.n)) * 1e-16
    answer = here.certified(beta, here.matvec(beta), here.dtype)
    y, coef = np.asarray(here.y, np.longdouble), np.asarray(answer.dual_coef, np.longdouble)
    f = np.asarray(here.gram.matvec(answer.dual_coef), np.longdouble)
    margins = y * (f + np.longdouble(float(answer.bias)))
    primal = (coef @ f + 1e22 * (np.maximum(0, 1 - margins) ** 2).sum()) / 2
    certificate = answer.certificate
    assert float(certificate.dual) * (1 + float(certificate.relative_gap)) >= float(primal) * (1 - 1e-9)


@pytest.mark.parametrize("form", ["alone", "beside", "beyond"])
def test_the_gap_of_an_optimum_is_no_smaller_than_in_long_double(form):
    """Of a w and its dual point, of a w beside one, and of bounds that were rounded up."""
    (_, y), C = samples.data(), 0.5
    Q = np.outer(y, y) * samples.kernel_matrix()
    a = box_solution(Q, np.ones(len(y)), np.full(len(y), C)).a
    a = np.where(a > C * (1 - 1e-9), C * (1 + 3 * 2**-23 * (form == "beyond")), a)
    here, point = hinge_problem(samples.gram(), y, C, bias="none"), np.stack([a, a]) if form == "beside" else a
    point, s = jnp.asarray(point), jnp.asarray(point @ Q)
    said, running = here.certified(point, s, np.dtype(np.float32)).certificate, here.certificate(point, s)
    Q, inside = Q.astype(np.longdouble), np.minimum(a, C)
    primal = a @ Q @ a / 2 + C * np.maximum(0, 1 - Q @ a).sum()
    gap = primal - inside.sum() + inside @ Q @ inside / 2
    assert gap <= float(said.relative_gap) * float(said.dual) < 1e-4
    assert (float(running.relative_gap) < 1e-4) == (form != "beyond")  # by more than what float64 rounds


def test_the_objective_knows_no_scale_and_the_diameter_is_of_the_largest_ridge():
    weight = np.linspace(0.5, 2, samples.N)
    here = svm_problem(samples.gram(), samples.data()[1], 2.0, bias="none", sample_weight=weight)
    alpha = here.feasible_point(jnp.asarray(weight))
    s = here.matvec(alpha)
    np.testing.assert_allclose(here.objective(3 * alpha, 3 * s), alpha @ s, rtol=1e-12)
    np.testing.assert_allclose(here.diameter_squared, 1 + 1 / (2 * 0.5), rtol=1e-12)


def test_running_certificates_of_the_simplex_are_those_of_long_double():
    """Of a point in any scale; an optimum's gap, which rounding makes negative here and there, is no refusal."""
    y, weight, C = samples.data()[1], np.linspace(0.5, 2, samples.N), 50.0
    here = svm_problem(samples.gram(), y, C, bias="none", sample_weight=weight)
    costs, Q = np.asarray(C * weight, np.longdouble), np.outer(y, y) * samples.kernel_matrix()
    optimum = solve_svm(samples.kernel_matrix(), y, C, weight, bias=False).alpha
    for a in (optimum, optimum + 1e-3, weight):
        points = jnp.asarray(np.linspace(0.1, 3, 64)[:, None] * a)
        found = jax.jit(jax.vmap(here.certificate))(points, points @ Q + points / (C * weight))
        beta = np.asarray(a, np.longdouble)
        margins = Q.astype(np.longdouble) @ beta
        R = beta @ (margins + beta / costs) / beta.sum() ** 2
        w, f = beta / (R * beta.sum()), margins / (R * beta.sum())
        primal = (w @ f + costs @ np.maximum(0, 1 - f) ** 2) / 2
        np.testing.assert_allclose(found.dual, float(1 / (2 * R)), rtol=1e-11)
        np.testing.assert_allclose(found.primal, float(primal), rtol=1e-11)
        np.testing.assert_allclose(found.relative_gap, float(2 * R * primal - 1), rtol=1e-9, atol=1e-11)
    one_below = jnp.asarray(np.where(optimum > 0, optimum, -1e-3))
    signs = jnp.where(jnp.arange(samples.N) % 2 == 0, 1.0, -1.0)  # alpha' K alpha = 0: of a matrix that is not definite
    for point, products in ((one_below, jnp.ones(samples.N)), (jnp.ones(samples.N), signs)):
        assert tuple(map(float, here.certificate(point, products))) == INFINITE


def test_errors_at_an_optimum_count_to_second_order():
    """And so do coefficients that rounding alone took below 0."""
    exact, here = samples.exact(1e6), samples.svm(1e6)
    beta = jnp.asarray(exact.alpha / exact.R)
    assert here.certified(beta, here.matvec(beta), here.dtype).certificate.relative_gap < 1e-11
    for below, least in ((1e-17, 0), (1e-9, np.inf)):
        values = Values(jnp.where(beta > 0, exact.alpha, -below), *[beta] * 2, jnp.asarray(exact.R), beta)
        primal, dual, gap = map(float, here.certificate_of(values, here.dtype))
        assert (dual, primal, gap) == pytest.approx((exact.optimum, exact.optimum + least, least), rel=1e-9, abs=1e-11)


def test_a_form_that_rounding_alone_may_have_made_proves_nothing():
    """A matrix that rounding made indefinite: what is 4e-19 in float64 is -3e-15, and 1 / (2 R) bounds no optimum."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(16, 2)) + 30, np.where(np.arange(16) % 2 == 0, 1.0, -1.0)
    weights = rng.normal(size=16)  # of a vertex where the hulls of both classes meet
    alpha = linprog(weights, A_eq=[*(y * x.T), y, np.ones(16)], b_eq=[0, 0, 0, 1]).x
    here = svm_problem(gram(Precomputed(), (x @ x.T + (x @ x.T).T) / 2), y, 1e18, bias="none")
    certificate = here.certified(jnp.asarray(alpha), here.matvec(jnp.asarray(alpha)), here.dtype).certificate
    assert tuple(map(float, certificate)) == INFINITE


def test_a_gap_is_relative_to_the_floor_only_beside_an_optimum_of_0():
    primal, dual = np.array([1e-9, 5.0, 1e-9]), np.array([0.0, 1e-30, -1.0])
    certificate = Certificate(primal, dual, np.full(3, np.inf))
    gaps = np.asarray(relative_to(certificate, 1e-6).relative_gap)
    np.testing.assert_allclose(gaps, [1e-3, 5e30, 1.0], rtol=1e-6)
