"""One suite for all solvers: a new solver is tested by joining the list."""

import functools
import threading
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jaxsvm
from jaxsvm import CoreVectorMachine, FrankWolfe, Newton, Status, polished, sampled
from jaxsvm.kernels import RBF, Polynomial, Precomputed
from jaxsvm.loop import fit_compiled

SOLVERS = {
    "classic": FrankWolfe(variant="classic", tol=5e-2, max_steps=30_000),
    "away": FrankWolfe(variant="away", tol=1e-3),
    "pairwise": FrankWolfe(variant="pairwise", tol=1e-3),
    "smo": FrankWolfe(variant="smo", tol=1e-3),
    "core vectors": CoreVectorMachine(tol=1e-3),
    "sampled away": sampled(FrankWolfe(variant="away", tol=1e-2)),
    "sampled smo": sampled(FrankWolfe(variant="smo", tol=1e-2)),
    "sampled core vectors": sampled(CoreVectorMachine(tol=1e-2)),
    "polished classic": polished(FrankWolfe(variant="classic", tol=1e-3)),
    "polished core vectors": polished(CoreVectorMachine(tol=1e-3)),
    "polished sampled away": polished(sampled(FrankWolfe(variant="away", tol=1e-2))),
    "newton": Newton(tol=1e-6),
}
NESTED = (
    "sampled away",
    "sampled smo",
    "sampled core vectors",
    "polished classic",
    "polished core vectors",
    "polished sampled away",
)
"""What is made of solvers that are in the list by themselves: with the slow tests, since each compiles all anew."""
every_solver = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in NESTED else name for name in SOLVERS]
)


@functools.cache
def data(n=60, d=2):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    y = np.where(x[:, 0] + x[:, 1] ** 2 > 0.7, 1.0, -1.0)
    return x, np.where(rng.random(n) < 0.1, -y, y)


GRAMS = {dtype: jaxsvm.gram(RBF(gamma=0.5), data()[0].astype(dtype)) for dtype in ("float32", "float64")}


def gram(dtype="float64"):
    return GRAMS[dtype]


def problem(C=2.0, dtype="float64", **options):
    return jaxsvm.svm_problem(gram(dtype), data()[1], C, **options)


@functools.cache
def exact(C=2.0):
    x, y = data()
    return oracle.solve_svm(oracle.kernel_matrix("rbf", x, gamma=0.5), y, C)


@every_solver
def test_fits_and_its_certificate_holds(name):
    fit = jaxsvm.check(jaxsvm.fit(problem(), SOLVERS[name]))
    certificate = fit.certificate
    assert certificate.relative_gap <= SOLVERS[name].tol
    assert certificate.dual * (1 - 1e-12) <= exact().optimum <= certificate.primal * (1 + 1e-12)
    assert float(certificate.relative_gap) == pytest.approx(float(certificate.primal / certificate.dual - 1), rel=1e-6)
    assert fit.alpha.min() >= 0
    assert abs(fit.alpha.sum() - 1) < 1e-12
    assert int(fit.steps) == int(fit.counters.toward + fit.counters.away) or "sampled" in name
    assert fit.kernel_evaluations > 0


@every_solver
def test_jit_and_vmap_give_the_same_answers(name):
    """The host driver, the compiled driver and lanes take the same steps, up to rounding, which some amplify."""
    solver, Cs = SOLVERS[name], jnp.array([0.5, 2.0, 8.0])

    def solve(C):
        return jaxsvm.fit(problem(C), solver, key=jax.random.key(3))

    lanes = jax.jit(jax.vmap(solve))(Cs)
    chex.assert_shape(lanes.alpha, (3, 60))
    single = jax.jit(solve)(2.0)
    host = solve(2.0)
    for other in (host, jax.tree.map(lambda leaf: leaf[1], lanes)):
        assert single.status.name == other.status.name == "CONVERGED"
        assert float(single.certificate.primal) == pytest.approx(float(other.certificate.primal), rel=solver.tol)
        if name in ("classic", "away", "pairwise", "smo"):
            assert abs(int(single.steps) - int(other.steps)) <= solver.check_every
            np.testing.assert_allclose(single.alpha, other.alpha, atol=5e-3)


@every_solver
def test_float32_stays_float32(name):
    fit = jaxsvm.fit(problem(dtype="float32"), SOLVERS[name])
    chex.assert_type([fit.alpha, fit.dual_coef, fit.bias, fit.certificate.relative_gap], jnp.float32)
    assert fit.status.name == "CONVERGED"
    assert float(fit.certificate.dual) <= exact().optimum * (1 + 1e-6)
    assert float(fit.certificate.primal) >= exact().optimum * (1 - 1e-6)


@every_solver
def test_steps_compose_in_a_users_scan(name):
    """`init`, `step`, `refresh`, `dual_point` are usable by themselves."""
    solver, here = SOLVERS[name], problem()

    @jax.jit
    def run(key):
        state = solver.init(here, key)
        state, R = jax.lax.scan(
            lambda state, _: ((after := solver.step(here, state)), after.R), state, None, length=300
        )
        return solver.dual_point(here, solver.refresh(here, state)), R

    (alpha, s), R = run(jax.random.key(0))
    K = np.asarray(gram().K)
    Kt = oracle.kt_matrix(K, data()[1], 2.0)
    np.testing.assert_allclose(s, Kt @ np.asarray(alpha), atol=1e-10)
    assert R[-1] < R[0]
    assert (np.diff(R) <= 1e-12).all()


@every_solver
def test_step_cap_is_exact(name):
    if "polished" in name:  # Newton may well end it within the 7 steps
        assert int(jaxsvm.fit(problem(1e4), _with_steps(SOLVERS[name], 7)).steps) == 7
        return
    with pytest.warns(jaxsvm.ConvergenceWarning, match="MAX_STEPS"):
        fit = jaxsvm.fit(problem(1e4), _with_steps(SOLVERS[name], 7))
    assert fit.status.name == "MAX_STEPS"
    assert int(fit.steps) == 7
    with pytest.raises(jaxsvm.ConvergenceError, match="MAX_STEPS"):
        jaxsvm.check(fit)


def _with_steps(solver, steps):
    import dataclasses

    if hasattr(solver, "solver"):
        return dataclasses.replace(solver, solver=_with_steps(solver.solver, steps))
    return dataclasses.replace(solver, max_steps=steps, tol=1e-12)


@every_solver
def test_values_do_not_recompile(name):
    solver = SOLVERS[name]
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def solve(gamma, C, tol_scale):
        import dataclasses

        inner = solver
        while hasattr(inner, "solver"):
            inner = inner.solver
        scaled = dataclasses.replace(inner, tol=inner.tol * tol_scale)
        here = jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=gamma), jnp.asarray(data()[0])), data()[1], C)
        return fit_compiled(here, scaled, jax.random.key(0)).certificate.relative_gap

    for gamma, C, scale in ((0.5, 1.0, 1.0), (0.3, 4.0, 2.0), (1.0, 0.1, 3.0)):
        assert solve(gamma, C, scale) <= 5e-2 * scale


def test_host_driver_compiles_once_for_all_values():
    from jaxsvm import loop

    jaxsvm.fit(problem(1.0), FrankWolfe(tol=1e-3))
    before = loop._burst._cache_size()
    jaxsvm.fit(problem(3.0), FrankWolfe(tol=1e-4, max_steps=5000))
    jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=0.1), data()[0]), data()[1], 5.0), FrankWolfe(tol=1e-2))
    assert loop._burst._cache_size() == before


@pytest.mark.parametrize("dtype", ["float32"])
@every_solver
def test_lowers_for_every_platform(name, dtype):
    solver = SOLVERS[name]

    def solve(x, y, C, key):
        here = jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=0.5), x), y, C)
        fit = fit_compiled(here, solver, jax.random.wrap_key_data(key))
        return jaxsvm.decision_function(fit, here, x), fit.certificate.relative_gap

    with jax.enable_x64(False):
        arguments = (
            jax.ShapeDtypeStruct((40, 2), dtype),
            jax.ShapeDtypeStruct((40,), dtype),
            jax.ShapeDtypeStruct((), dtype),
            jax.ShapeDtypeStruct((2,), "uint32"),
        )
        exported = jax.export.export(jax.jit(solve), platforms=["cpu", "cuda", "tpu"])(*arguments)
    assert exported.platforms == ("cpu", "cuda", "tpu")


# --- weights and masks
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smo", "core vectors", pytest.param("sampled smo", marks=pytest.mark.slow)])
def test_weight_zero_is_absence_and_weight_two_duplication(name):
    x, y = data()
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 3, len(y)).astype(float)
    repeated = np.repeat(np.arange(len(y)), weight.astype(int))
    solver = _with_tol(SOLVERS[name], 1e-7 if "sampled" not in name else 1e-4)
    weighted = jaxsvm.check(jaxsvm.fit(problem(sample_weight=weight), solver))
    longer = jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=0.5), x[repeated]), y[repeated], 2.0)
    duplicated = jaxsvm.check(jaxsvm.fit(longer, solver))
    assert (np.asarray(weighted.alpha)[weight == 0] == 0).all()
    tolerance = 1e-3 if "sampled" not in name else 2e-2
    np.testing.assert_allclose(
        jaxsvm.decision_function(weighted, problem(sample_weight=weight), x),
        jaxsvm.decision_function(duplicated, longer, x),
        atol=tolerance,
    )
    assert float(weighted.certificate.primal) == pytest.approx(float(duplicated.certificate.primal), rel=1e-3)
    truth = oracle.solve_svm(oracle.kernel_matrix("rbf", x, gamma=0.5), y, 2.0, weight=weight)
    assert float(weighted.certificate.dual) <= truth.optimum * (1 + 1e-9)
    assert float(weighted.certificate.primal) >= truth.optimum * (1 - 1e-9)


def _with_tol(solver, tol):
    import dataclasses

    if hasattr(solver, "solver"):
        return dataclasses.replace(solver, solver=_with_tol(solver.solver, tol))
    return dataclasses.replace(solver, tol=tol)


def test_no_bias():
    x, y = data()
    fit = jaxsvm.check(jaxsvm.fit(problem(bias="none"), FrankWolfe(tol=1e-8)))
    truth = oracle.solve_svm(oracle.kernel_matrix("rbf", x, gamma=0.5), y, 2.0, bias=False)
    assert float(fit.bias) == 0
    assert float(fit.certificate.primal) == pytest.approx(truth.optimum, rel=1e-7)


def test_precomputed_is_the_same_problem():
    x, y = data()
    K = oracle.kernel_matrix("rbf", x, gamma=0.5)
    by_matrix = jaxsvm.svm_problem(jaxsvm.gram(Precomputed(), K), y, 2.0)
    fit = jaxsvm.fit(by_matrix, FrankWolfe(tol=1e-8))
    assert float(fit.certificate.primal) == pytest.approx(exact().optimum, rel=1e-7)
    model = jaxsvm.compact(fit, by_matrix)
    np.testing.assert_allclose(
        jaxsvm.decision_function(model, K[:5]), jaxsvm.decision_function(fit, by_matrix, K[:5]), atol=1e-12
    )


# --- failure is data
# ---------------------------------------------------------------------------------------------------


def test_one_bad_lane_does_not_spoil_the_others():
    Cs = jnp.array([1.0, -1.0, jnp.nan, 4.0, 0.0])
    lanes = jax.jit(jax.vmap(lambda C: jaxsvm.fit(problem(C), FrankWolfe(tol=1e-3))))(Cs)
    assert list(lanes.status.name) == ["CONVERGED", "INFEASIBLE", "INFEASIBLE", "CONVERGED", "INFEASIBLE"]
    single = jaxsvm.fit(problem(4.0), FrankWolfe(tol=1e-3))
    np.testing.assert_allclose(lanes.alpha[3], single.alpha, atol=1e-12)
    with pytest.raises(jaxsvm.ConvergenceError, match="lane 1: INFEASIBLE"):
        jaxsvm.check(lanes)


def test_traced_faults_become_a_status():
    def status(y, weight):
        return jaxsvm.fit(problem_of(y, weight), FrankWolfe()).status

    def problem_of(y, weight):
        return jaxsvm.svm_problem(gram(), y, 1.0, sample_weight=weight)

    x, y = data()
    ones = np.ones(len(y))
    run = jax.jit(status)
    assert run(y, ones).name == "CONVERGED"
    assert run(ones, ones).name == "INFEASIBLE"  # one class
    assert run(y * 2, ones).name == "INFEASIBLE"  # no signs
    assert run(y, 0 * ones).name == "INFEASIBLE"
    assert run(y, -ones).name == "INFEASIBLE"
    assert run(y, (y > 0).astype(float)).name == "INFEASIBLE"  # one class has all the weight


def test_not_finite_and_not_psd():
    x, y = data()
    K = oracle.kernel_matrix("rbf", x, gamma=0.5)
    broken = K.copy()
    broken[7, 9] = np.nan
    run = jax.jit(lambda K: jaxsvm.fit(jaxsvm.svm_problem(jaxsvm.gram(Precomputed(), K), y, 1.0), FrankWolfe()))
    fit = run(broken)
    assert fit.status.name == "NOT_FINITE"
    indefinite = K - 3 * np.eye(len(y))
    for variant in ("away", "smo"):
        with pytest.warns(jaxsvm.ConvergenceWarning, match="NOT_PSD"):
            fit = jaxsvm.fit(
                jaxsvm.svm_problem(jaxsvm.gram(Precomputed(), indefinite), y, 1.0), FrankWolfe(variant=variant)
            )
        assert fit.status.name == "NOT_PSD"
        assert np.isfinite(np.asarray(fit.alpha)).all()


def test_below_the_floor_of_float32_is_stalled_not_converged():
    with pytest.warns(jaxsvm.ConvergenceWarning, match="STALLED"):
        fit = jaxsvm.fit(problem(1e6, dtype="float32"), FrankWolfe(tol=1e-9))
    assert fit.status.name == "STALLED"
    assert float(fit.certificate.relative_gap) > 1e-9


def test_sampled_stop_without_final_check_never_says_converged_falsely():
    solver = sampled(FrankWolfe(variant="away", tol=1e-3, stop="paper"), r=5, tries=1, final_check="none")
    with pytest.warns(jaxsvm.ConvergenceWarning, match="STALLED"):
        fit = jaxsvm.fit(problem(100.0), solver)
    assert fit.status.name == "STALLED"
    assert float(fit.certificate.dual) <= exact(100.0).optimum <= float(fit.certificate.primal)


# --- drivers
# -----------------------------------------------------------------------------------------------------------


def test_time_limit_callback_and_resume():
    slow = FrankWolfe(variant="classic", tol=1e-10, max_steps=2**30)
    with pytest.warns(jaxsvm.ConvergenceWarning, match="INTERRUPTED"):
        started = time.monotonic()
        fit = jaxsvm.fit(problem(), slow, max_seconds=0.3)
        assert time.monotonic() - started < 30
    assert fit.status.name == "INTERRUPTED"
    seen = []

    def callback(fit):
        seen.append(float(fit.certificate.relative_gap))
        return len(seen) >= 5

    with pytest.warns(jaxsvm.ConvergenceWarning, match="INTERRUPTED"):
        fit = jaxsvm.fit(problem(), slow, callback=callback)
    assert len(seen) == 5
    resumed = jaxsvm.fit(problem(), FrankWolfe(tol=1e-6), init=fit)
    fresh = jaxsvm.fit(problem(), FrankWolfe(tol=1e-6))
    assert resumed.status.name == "CONVERGED"
    assert int(resumed.steps) <= int(fresh.steps) + 250


def test_interrupt_returns_the_last_certified_fit():
    import _thread

    threading.Timer(1.0, _thread.interrupt_main).start()
    with pytest.warns(jaxsvm.ConvergenceWarning, match="INTERRUPTED"):
        fit = jaxsvm.fit(problem(), FrankWolfe(variant="classic", tol=1e-12, max_steps=2**30))
    assert fit.status.name == "INTERRUPTED"
    assert float(fit.certificate.dual) <= exact().optimum <= float(fit.certificate.primal)


def test_statuses_read_on_the_host():
    fit = jaxsvm.fit(problem(), FrankWolfe())
    assert fit.status == Status.CONVERGED
    assert int(fit.status) == Status.CONVERGED
    assert fit.status.name == "CONVERGED"
    assert repr(fit.status) == "Status.CONVERGED"
    assert np.asarray(fit.status).dtype == np.int32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C": 0.0}, "C is 0.0"),
        ({"C": float("nan")}, "C is nan"),
        ({"C": [1.0, 2.0]}, "C has shape"),
        ({"y": np.ones(60)}, "no sample of class -1"),
        ({"y": np.arange(60)}, "y holds the values"),
        ({"y": np.ones(59)}, "y has shape"),
        ({"sample_weight": -np.ones(60)}, "negative"),
        ({"sample_weight": np.zeros(60)}, "zero everywhere"),
        ({"sample_weight": np.full(60, np.nan)}, "NaN"),
        ({"sample_weight": np.ones(3)}, "sample_weight has shape"),
        ({"bias": "loose"}, "bias is 'loose'"),
    ],
)
def test_bad_problems_are_refused(change, message):
    arguments = {"gram": gram(), "y": data()[1], "C": 1.0} | change
    with pytest.raises(jaxsvm.InputError, match=message):
        jaxsvm.svm_problem(arguments.pop("gram"), arguments.pop("y"), arguments.pop("C"), **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FrankWolfe(variant="fast"), "variant"),
        (lambda: sampled(FrankWolfe(), r=0), "r is 0"),
        (lambda: sampled(FrankWolfe(), final_check="half"), "final_check"),
        (lambda: sampled(polished(FrankWolfe())), "innermost"),
        (lambda: polished(FrankWolfe(), 0), "products"),
        (lambda: jaxsvm.fit(problem(), FrankWolfe(tol=0.0)), "tol is 0"),
        (lambda: jaxsvm.fit(problem(), FrankWolfe(stop="soon")), "stop"),
        (lambda: jaxsvm.fit(problem(), FrankWolfe(start="nowhere")), "start"),
        (lambda: jaxsvm.fit(problem(), FrankWolfe(), init=np.ones(3)), "init"),
        (lambda: jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), []), "Cs"),
        (lambda: jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), [1.0, -1.0]), "positive"),
    ],
)
def test_bad_configurations_are_refused(make, message):
    with pytest.raises(jaxsvm.InputError, match=message):
        make()


# --- path
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_path_in_any_order_with_repeats(lanes):
    Cs = np.array([8.0, 0.1, 2.0, 8.0, 0.5])
    path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, tol=1e-6, lanes=lanes)
    jaxsvm.check(path)
    assert path.alphas.shape == (5, 60)
    np.testing.assert_allclose(path.Cs, Cs)
    for C, fit in zip(Cs, path, strict=True):
        assert float(fit.certificate.dual) <= exact(C).optimum * (1 + 1e-12)
        assert float(fit.certificate.primal) >= exact(C).optimum * (1 - 1e-12)
        assert float(fit.certificate.relative_gap) <= 1e-6


def test_traced_path_agrees_with_the_host():
    Cs = jnp.array([4.0, 0.5, 1.0])
    chain = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, solver=jaxsvm.FrankWolfe(tol=1e-4))
    refined = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, tol=1e-4)
    traced = jax.jit(lambda Cs: jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, tol=1e-4))(Cs)
    np.testing.assert_allclose(chain.alphas, traced.alphas, atol=2e-6)  # rounding alone, which some steps amplify
    assert (np.asarray(chain.steps) == np.asarray(traced.steps)).all()
    assert list(traced.status.name) == list(refined.status.name) == ["CONVERGED"] * 3
    np.testing.assert_allclose(refined.certificate.dual, traced.certificate.dual, rtol=1e-4)


# --- the ball
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SOLVERS if name != "newton" and name not in NESTED])  # for SVMs
def test_ball_of_points(name):
    x, _ = data()
    from jaxsvm.kernels import Linear

    for kernel, K in ((Linear(), x @ x.T), (RBF(gamma=0.5), oracle.kernel_matrix("rbf", x, gamma=0.5))):
        here = jaxsvm.meb_problem(jaxsvm.gram(kernel, x))
        fit = jaxsvm.fit(here, _with_tol(SOLVERS[name], 1e-2))
        radius_squared = oracle.solve_meb(K)[1]
        assert float(fit.certificate.dual) <= radius_squared * (1 + 1e-9)
        assert float(fit.certificate.primal) >= radius_squared * (1 - 1e-9)
        ball = jaxsvm.ball(fit, here)
        assert float(ball.lower_radius) <= np.sqrt(radius_squared) * (1 + 1e-9)
        assert jaxsvm.is_coreset(here, ball.coreset, 0.05)
        assert not jaxsvm.is_coreset(here, ball.coreset[:1], 0.05)
        if name == "smo" and isinstance(kernel, Linear):
            centre = np.asarray(ball.centre(x))
            reach = np.linalg.norm(x - centre, axis=1).max()
            assert reach == pytest.approx(float(ball.radius), rel=1e-6)


def test_ball_of_one_point_and_of_duplicates():
    for x in (np.ones((1, 3)), np.ones((4, 3))):
        fit = jaxsvm.fit(jaxsvm.meb_problem(jaxsvm.gram(RBF(gamma=1.0), x)), FrankWolfe())
        assert fit.status.name == "CONVERGED"
        assert float(jaxsvm.ball(fit, jaxsvm.meb_problem(jaxsvm.gram(RBF(gamma=1.0), x))).radius) < 1e-6


def test_an_svm_with_constant_diagonal_is_a_ball():
    """docs/mathematics.md, The dual: z_i . z_j = Kt_ij, r*^2 = Delta^2 - R*, and the support is a coreset."""
    here = problem()
    fit = jaxsvm.check(jaxsvm.fit(here, FrankWolfe(tol=1e-10)))
    found = jaxsvm.ball(fit, here)
    radius_squared = 2 + 1 / 2.0 - exact().R
    assert float(found.lower_radius) == pytest.approx(np.sqrt(radius_squared), rel=1e-9)
    assert float(found.radius) == pytest.approx(np.sqrt(radius_squared), rel=1e-6)
    truth = oracle.solve_meb(oracle.kt_matrix(np.asarray(gram().K), data()[1], 2.0))[1]
    assert truth == pytest.approx(radius_squared, rel=1e-9)
    assert jaxsvm.is_coreset(here, found.coreset, 1e-3)
    assert not jaxsvm.is_coreset(here, found.coreset[:3], 1e-3)
    varying = jaxsvm.svm_problem(jaxsvm.gram(Polynomial(2), data()[0]), data()[1], 2.0)
    with pytest.raises(jaxsvm.InputError, match="diagonal"):
        jaxsvm.ball(jaxsvm.fit(varying, FrankWolfe(tol=1e-2)), varying)


# --- stop rules, chex variants, and lowering of the rest ---------------------------------------------------------


@pytest.mark.parametrize(("stop", "tol"), [("relative_fw", 1e-2), ("paper", 1e-4), ("certified_gap", 1e-4)])
def test_stop_rules_hold_where_they_say_so(stop, tol):
    here = problem(20.0)
    fit = jaxsvm.check(jaxsvm.fit(here, FrankWolfe(stop=stop, tol=tol)))
    Kt = oracle.kt_matrix(np.asarray(gram().K), data()[1], 20.0)
    alpha = np.asarray(fit.alpha)
    R, G = alpha @ Kt @ alpha, float(oracle.fw_gap(Kt, alpha))
    if stop == "relative_fw":
        assert tol * R * (1 + 1e-9) >= G
    elif stop == "paper":
        assert (2 * tol + tol**2) * (Kt.diagonal().max() - R) * (1 + 1e-9) >= G
    else:
        assert float(oracle.relative_gap_direct(np.asarray(gram().K), data()[1], 20.0, alpha)) <= tol


class TestVariants(chex.TestCase):
    """`step` and `refresh` are pure: the same with and without jit."""

    @chex.variants(with_jit=True, without_jit=True)
    def test_steps(self):
        here = problem()
        for solver in (FrankWolfe(variant="away"), FrankWolfe(variant="smo"), CoreVectorMachine()):
            state = solver.init(here, jax.random.key(0))
            step = self.variant(lambda state, solver=solver: solver.refresh(here, solver.step(here, state)))
            for _ in range(3):
                state = step(state)
            Kt = oracle.kt_matrix(np.asarray(gram().K), data()[1], 2.0)
            np.testing.assert_allclose(state.s, Kt @ np.asarray(state.alpha), atol=1e-12)


@pytest.mark.parametrize("what", ["path", "ball", "tiled", "low rank"])
def test_the_rest_lowers_for_every_platform(what):
    def compute(x, y, C):
        if what == "ball":
            here = jaxsvm.meb_problem(jaxsvm.gram(RBF(gamma=0.5), x))
            return jaxsvm.ball(jaxsvm.fit(here, FrankWolfe()), here).radius
        options = {"tiled": {"tile": 16}, "low rank": {"rank": 8}}.get(what, {})
        here = jaxsvm.gram(RBF(gamma=0.5), x, **options)
        path = jaxsvm.solve_path(jaxsvm.svm_problem(here, y), jnp.stack([C, 2 * C, 4 * C]), tol=1e-3, lanes=2)
        return path.alphas, path.certificate.relative_gap

    with jax.enable_x64(False):
        arguments = (
            jax.ShapeDtypeStruct((40, 2), "float32"),
            jax.ShapeDtypeStruct((40,), "float32"),
            jax.ShapeDtypeStruct((), "float32"),
        )
        exported = jax.export.export(jax.jit(compute), platforms=["cpu", "cuda", "tpu"])(*arguments)
    assert exported.platforms == ("cpu", "cuda", "tpu")
