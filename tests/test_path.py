"""Paths: every value certified, whatever the order, the kernel, the weights, the Gram operator and the interruption."""

import contextlib
import dataclasses
import functools
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from oracle_hinge import parabola

import jaxsvm
from jaxsvm import Status
from jaxsvm.kernels import RBF, Linear, Polynomial, Precomputed, Sigmoid
from jaxsvm.loop import bursts as compiled
from jaxsvm.loop import driver as loop
from jaxsvm.path import anchors, coarse_to_fine
from jaxsvm.problems.certificates import rounded_values

N = 100  # the one size of most tests: few shapes, so few compilations
GRID = np.geomspace(1e-3, 1e3, 13)
NONE = functools.partial(jaxsvm.svm_problem, bias="none")
FREE = functools.partial(jaxsvm.svm_problem, bias="free")


@functools.cache
def data(n=N, noise=0.1):
    return parabola(n, wrong=noise)


@functools.cache
def gram(dtype="float64", n=N, noise=0.1):
    return jaxsvm.gram(RBF(gamma=0.5), data(n, noise=noise)[0].astype(dtype))


def kernel_of(here):
    return np.asarray(here.matvec(jnp.eye(here.n, dtype=here.dtype)), np.float64)


def judge(path, Cs, K, y, tol, weight=None, bias=True, truth=True):
    """Every value is CONVERGED, is a point of its own problem, and its certificate bounds the true errors."""
    assert list(path.status.name) == ["CONVERGED"] * len(Cs)
    np.testing.assert_allclose(path.Cs, Cs, rtol=1e-6)
    eps = float(jnp.finfo(path.alphas.dtype).eps)
    for C, fit in zip(np.asarray(Cs, float).tolist(), path, strict=True):
        # R is a sum of terms that cancel, of the size of the kernel's diagonal.
        slack = eps * (100 + 8 * (K.diagonal().max() + 1) * float(fit.certificate.dual))
        alpha, gap = np.asarray(fit.alpha, np.float64), float(fit.certificate.relative_gap)
        assert 0 <= gap <= tol
        assert alpha.min() >= 0
        assert alpha.sum() == pytest.approx(1, abs=slack)
        if weight is not None:
            assert (alpha[np.asarray(weight) == 0] == 0).all()
        exact_alpha = alpha / alpha.sum()
        # Alone the rounding of what the certificate was computed from may stand between the two gaps.
        assert oracle.relative_gap_direct(K, y, C, exact_alpha, weight, bias) <= gap * (1 + slack) + slack
        np.testing.assert_allclose(np.asarray(fit.dual_coef), y * alpha / float(fit.R), rtol=slack, atol=0)
        expected = float(np.asarray(fit.dual_coef, np.float64).sum()) if bias else 0.0
        assert float(fit.bias) == pytest.approx(expected, abs=slack * (1 + float(np.abs(fit.dual_coef).sum())))
        R = oracle.simplex_objective(K, y, C, exact_alpha, weight, bias)
        below = slack + 4 * len(y) * np.finfo(float).eps  # less what its own sums may have lost
        assert float(fit.certificate.dual) == pytest.approx(1 / (2 * R), rel=below)
        if truth:
            optimum = oracle.solve_svm(K, y, C, weight, bias).optimum
            assert float(fit.certificate.dual) <= optimum * (1 + slack)
            assert float(fit.certificate.primal) >= optimum * (1 - slack)


@contextlib.contextmanager
def compilations():
    """Names a list that grows by one for each program that any thread compiles (or takes from the disk)."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_the_gap_with_exact_kernel_values_is_one_program():
    """Operation by operation it was a hundred: three seconds of a first path, and half of the time of a later one."""
    x = np.random.default_rng(0).normal(size=(91, 3)).astype(np.float32)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(1e-2), x), np.where(x[:, 0] > 0, 1, -1), 10.0)
    fit = jaxsvm.fit(problem, tol=1e-3)
    with compilations() as seen:
        assert rounded_values._exact_gap(problem, fit) <= 1e-3
    assert len(seen) <= 8  # what casts and prepares the points, and the program


@pytest.fixture
def solves(monkeypatch):
    """The problems that go to the host driver: `(n, C)` each, and how each ended."""
    seen = []

    def drive(problem, *arguments, **options):
        fit = loop.drive(problem, *arguments, **options)
        seen.append((problem.n, float(problem.C), fit.status.name))
        return fit

    monkeypatch.setattr(anchors, "drive", drive)
    monkeypatch.setattr(coarse_to_fine, "drive", drive)
    return seen


@pytest.fixture
def working_sets(monkeypatch):
    """Working sets at small n: how many became smaller, how many exchanged samples; over 40 exchanges are a fault."""
    seen = {"smaller": [], "exchanged": []}
    monkeypatch.setattr(anchors, "sizes", lambda n: [n, 64, 48])
    cut, exchange = anchors.smaller, anchors.exchanged

    def smaller(*arguments):
        before, after = arguments[-1], cut(*arguments)
        if after is not before:
            seen["smaller"].append(len(after.samples))
        return after

    def exchanged(*arguments):
        after = exchange(*arguments)
        seen["exchanged"].append(len(after.samples))
        if len(seen["exchanged"]) > 40:
            raise AssertionError(f"samples are exchanged without end, in working sets of {seen['exchanged'][-5:]}")
        return after

    monkeypatch.setattr(anchors, "smaller", smaller)
    monkeypatch.setattr(anchors, "exchanged", exchanged)
    return seen


# --- certified against the oracle


@pytest.mark.parametrize(("dtype", "tol", "n"), [("float64", 1e-4, N), ("float64", 1e-8, N), ("float32", 1e-4, N)])
def test_every_value_is_certified_and_near_the_truth(dtype, tol, n):
    path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(dtype, n), data(n)[1]), GRID, tol=tol)
    judge(path, GRID, kernel_of(gram(dtype, n)), data(n)[1], tol)


def test_means_need_no_steps_of_their_own(solves):
    """A fine grid costs little more than a coarse one: most values are the mean of two others."""
    fine = np.geomspace(10.0, 1e3, 257)
    path = jaxsvm.check(jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), fine, tol=1e-4))
    assert len(solves) < 128
    assert (np.asarray(path.steps) == 0).sum() > 128
    assert float(path.certificate.relative_gap.max()) <= 1e-4


def test_a_call_repeats_to_the_bit():
    first, second = (
        jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), np.geomspace(0.1, 300, 30), tol=1e-5) for _ in range(2)
    )
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


# --- working sets


@pytest.mark.thorough
def test_samples_left_out_come_back(working_sets, monkeypatch):
    """Without a margin a working set holds the support alone, of a smaller C: what enters later is exchanged for."""
    measured = dataclasses.replace(anchors.MEASURED, margin_of_candidates=0.0)
    monkeypatch.setattr(anchors, "MEASURED", measured)
    monkeypatch.setattr(anchors, "sizes", lambda n: [n, 64, 48, 24])
    x, y = data(noise=0.02)
    Cs, here = [0.1, 10.0, 1e3], jaxsvm.gram(Polynomial(degree=3), x)
    path = jaxsvm.solve_path(jaxsvm.svm_problem(here, y), Cs, tol=1e-6)
    assert working_sets["smaller"][-1] == 24
    assert working_sets["exchanged"][0] == 64
    assert max(working_sets["exchanged"][1:]) == 48  # what is support after the exchange does not fit 24
    judge(path, Cs, kernel_of(here), y, 1e-6)


@pytest.mark.parametrize(
    "operator", ["weighted", *(pytest.param(o, marks=pytest.mark.slow) for o in ("tiled", "low rank"))]
)
def test_cuts_of_other_operators_and_weights(working_sets, operator):
    x, y = data(noise=0.02)
    options = {"tiled": {"tile": 32}, "low rank": {"rank": 60}}.get(operator, {})
    here = jaxsvm.gram(RBF(gamma=0.5), x, **options)
    weight = np.where(np.arange(N) % 5 == 0, 0.0, 1 + np.arange(N) % 3) if operator == "weighted" else None
    path = jaxsvm.solve_path(jaxsvm.svm_problem(here, y, sample_weight=weight), GRID, tol=1e-5)
    assert working_sets["smaller"]
    judge(path, GRID, kernel_of(here), y, 1e-5, weight)


def test_absent_samples_never_count_as_support(working_sets):
    """Absent samples may lie inside the margin for good: no exchange brings them in."""
    x, y = data(noise=0.02)
    rng = np.random.default_rng(5)
    weight = np.where(rng.random(N) < 0.4, 0.0, 1.0)
    flipped = np.where(weight == 0, -y, y)  # an absent sample on the wrong side has a margin below 1
    path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(noise=0.02), flipped, sample_weight=weight), GRID, tol=1e-4)
    assert working_sets["smaller"]
    judge(path, GRID, kernel_of(gram(noise=0.02)), flipped, 1e-4, weight)


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_cuts_at_the_floor_of_the_dtype_end(working_sets, monkeypatch):
    """A value that stalls on its working set ends there, and says so, and the others hold."""
    measured = dataclasses.replace(anchors.MEASURED, margin_of_candidates=-0.8)
    monkeypatch.setattr(anchors, "MEASURED", measured)
    Cs, y = np.array([1.0, 10.0, 1e7, 1e8]), data(noise=0.02)[1]
    path = jaxsvm.solve_path(jaxsvm.svm_problem(gram("float32", noise=0.02), y), Cs, tol=1e-5)
    assert working_sets["smaller"]
    assert list(path.status.name[:2]) == ["CONVERGED"] * 2
    assert set(path.status.name[2:]) <= {"CONVERGED", "STALLED"}
    assert ((np.asarray(path.certificate.relative_gap) > 1e-5) == (path.status.name == "STALLED")).all()


@pytest.mark.slow
def test_a_path_of_1800_samples_with_nothing_patched():
    y = data(1800, noise=0.02)[1]
    Cs = np.geomspace(1e-2, 1e2, 9)  # at C = 1e3 float32 has its floor at 1.6e-4
    for dtype in ("float64", "float32"):
        here = gram(dtype, 1800, 0.02)
        path = jaxsvm.solve_path(jaxsvm.svm_problem(here, y), Cs, tol=1e-4)
        assert set(path.status.name) == {"CONVERGED"}
        judge(jax.tree.map(lambda leaf: leaf[::4], path), Cs[::4], kernel_of(here), y, 1e-4, truth=False)


# --- any list of values


@pytest.mark.parametrize("Cs", [[8.0, 0.1, 2.0, 8.0, 0.5], [3.0], [5.0, 5.0, 5.0], [1e3, 1e-3], [2.0, 1.0]])
def test_any_order_repeats_and_single_values(Cs):
    path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, tol=1e-6)
    judge(path, Cs, kernel_of(gram()), data()[1], 1e-6)
    assert len(path) == len(Cs)
    for i, j in zip(*np.nonzero(np.equal.outer(Cs, Cs)), strict=True):
        np.testing.assert_array_equal(path.alphas[i], path.alphas[j])


def test_lists_arrays_and_integers_are_the_same_values():
    first = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), [1, 10])
    for Cs in (np.array([1, 10]), jnp.array([1.0, 10.0]), (1.0, 10.0), np.float32([1, 10])):
        np.testing.assert_array_equal(first.alphas, jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs).alphas)
    assert first.Cs.dtype == jnp.float64


def test_extreme_values_in_float64():
    Cs = [1.0, 1e8, 1e-6, 1e4, 1e-4]
    with warnings.catch_warnings(action="error"):
        path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, tol=1e-4)
    judge(path, Cs, kernel_of(gram()), data()[1], 1e-4)


@pytest.mark.slow
def test_values_beyond_the_dtype_of_the_places_stay_finite():
    """Where C is so large that the places on the path fall together, nothing becomes NaN."""
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        warnings.simplefilter("ignore", jaxsvm.ConvergenceWarning)
        path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), [1.0, 1e18, 2e18, 3e18], tol=1e-2)
    assert np.isfinite(path.alphas).all()
    assert path.status.name[0] == "CONVERGED"


def test_a_value_that_stalls_leaves_the_others_alone():
    Cs, y = [1e8, 1.0, 1e3, 10.0, 0.01], data()[1]
    with pytest.warns(jaxsvm.ConvergenceWarning, match="STALLED"):
        path = jaxsvm.solve_path(jaxsvm.svm_problem(gram("float32"), y), Cs, tol=1e-4)
    assert path.status.name[0] == "STALLED"
    assert float(path.certificate.relative_gap[0]) > 1e-4
    rest = jax.tree.map(lambda leaf: leaf[1:], path)
    judge(rest, Cs[1:], kernel_of(gram("float32")), y, 1e-4)
    with pytest.raises(jaxsvm.ConvergenceError, match="lane 0: STALLED"):
        jaxsvm.check(path)


def test_beyond_a_value_that_ends_far_off_no_steps_are_taken_and_one_warning_says_so(monkeypatch):
    ends = []

    def drive(problem, *arguments, **options):
        ends.append(float(problem.C))
        return loop.drive(problem, *arguments, **options)

    monkeypatch.setattr(coarse_to_fine, "drive", drive)
    problem, Cs = jaxsvm.svm_problem(gram("float32"), data()[1]), [1.0, 1e10, 1e11, 1e12]
    with pytest.warns(jaxsvm.ConvergenceWarning) as told:
        path = jaxsvm.solve_path(problem, Cs, tol=1e-4)
    (text,) = [str(each.message) for each in told if each.category is jaxsvm.ConvergenceWarning]
    assert text.startswith("3 of 4 fits are not certified to tol 0.0001: ") and "the first at 1e+10" in text
    assert "init" not in text and "max_steps" not in text
    assert path.status.name[0] == "CONVERGED" and max(ends) == np.float32(1e10)
    with pytest.warns(jaxsvm.ConvergenceWarning, match="not certified"):
        scored = jaxsvm.cross_validate(problem, Cs, 2)
    assert scored.C == 1.0 and np.isnan(scored.scores[:, -1]).all() and "nan" not in repr(scored)


def test_a_cross_validation_without_time_says_what_it_reached():
    problem = jaxsvm.svm_problem(gram("float32"), data()[1])
    with pytest.warns(jaxsvm.ConvergenceWarning, match="4 INTERRUPTED.*more time"):
        scored = jaxsvm.cross_validate(problem, [1.0, 2.0], 2, max_seconds=1e-9)
    assert set(scored.status.name.ravel()) == {"INTERRUPTED"} and np.isnan(scored.C)
    with pytest.raises(jaxsvm.InputError, match="max_seconds"):
        jaxsvm.cross_validate(problem, [1.0], 2, max_seconds=-1)


def test_an_indefinite_kernel_is_named_at_every_value():
    """At small C the ridge makes `Kt` positive definite, but the primal that a certificate speaks of is not convex."""
    here, Cs = jaxsvm.gram(Sigmoid(gamma=2.0, coef0=-1.0), data()[0]), [0.01, 100.0, 0.001]
    with pytest.warns(jaxsvm.ConvergenceWarning, match="NOT_PSD"):
        path = jaxsvm.solve_path(jaxsvm.svm_problem(here, data()[1]), Cs)
    assert list(path.status.name) == ["NOT_PSD"] * 3


# --- data


def _rare():
    y = np.where(np.arange(N) == 0, 1.0, -1.0)
    return jaxsvm.gram(RBF(gamma=0.5), np.random.default_rng(3).normal(size=(N, 2)) + 1.5 * (y > 0)[:, None]), y


def _twice(signs):
    return jaxsvm.gram(RBF(gamma=0.5), np.repeat(data()[0][: N // 2], 2, axis=0)), signs(data()[1][: N // 2])


def _two():
    return jaxsvm.gram(Linear(), np.array([[0.0, 1.0], [1.0, -0.5]])), np.array([1.0, -1.0])


def _of(kernel=None, scale=1.0, **options):
    return jaxsvm.gram(kernel or RBF(gamma=0.5), scale * data()[0], **options), data()[1]


QUADRATIC = Polynomial(degree=2, gamma=1.0, coef0=1.0)
CASES = {
    "one to a hundred": (_rare, GRID, 1e-6),
    "equal twins": (lambda: _twice(lambda y: np.repeat(y, 2)), GRID, 1e-4),
    "opposite twins": (lambda: _twice(lambda y: np.tile([1.0, -1.0], len(y))), GRID, 1e-4),
    "two samples": (_two, GRID, 1e-8),
    "linear": (lambda: _of(Linear()), np.geomspace(1e-3, 1e2, 9), 1e-5),
    "linear, wide": (lambda: _of(Linear(), 30.0), np.geomspace(1e-3, 1e2, 9) / 30.0**2, 1e-5),
    "quadratic": (lambda: _of(QUADRATIC), np.geomspace(1e-3, 1e2, 9), 1e-5),
    "quadratic, wide": (lambda: _of(QUADRATIC, 30.0), np.geomspace(1e-3, 1e2, 9) / 30.0**4, 1e-5),
    "tiled": (lambda: _of(tile=32), GRID, 1e-4),
    "nystroem": (lambda: _of(rank=20), GRID, 1e-4),
    "precomputed": (lambda: (jaxsvm.gram(Precomputed(), kernel_of(gram())), data()[1]), GRID, 1e-4),
    "fourier": (lambda: _of(rank=64, method="fourier"), GRID, 1e-4),
    "many features": (lambda: _of(rank=300, method="fourier"), GRID, 1e-4),
    "no bias": (lambda: (gram(), data()[1]), GRID, 1e-5),
    "no bias, low rank": (lambda: _of(rank=20), GRID, 1e-5),
}
"""Of each: its Gram operator and signs, the values of C, the gap."""
AGAIN = ("opposite twins", "linear, wide", "quadratic", "nystroem", "no bias")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            n,
            marks=pytest.mark.slow if n in ("fourier", "many features") else pytest.mark.thorough if n in AGAIN else (),
        )
        for n in CASES
    ],
)
def test_data_and_operators(case):
    make, Cs, tol = CASES[case]
    here, y = make()
    bias = not case.startswith("no bias")
    path = jaxsvm.solve_path((jaxsvm.svm_problem if bias else NONE)(here, y), Cs, tol=tol)
    judge(path, Cs, kernel_of(here), y, tol, bias=bias)


# --- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda problem: jaxsvm.solve_path(problem, 1.0), "Cs"),
        (lambda problem: jaxsvm.solve_path(problem, [[1.0]]), "Cs"),
        (lambda problem: jaxsvm.solve_path(problem, [1.0, np.nan]), "Cs"),
        (lambda problem: jaxsvm.solve_path(problem, [0.0, 1.0]), "positive"),
        (lambda p: jax.jit(lambda Cs: jaxsvm.solve_path(p, Cs, callback=print).alphas)(jnp.ones(2)), "callback"),
    ],
)
def test_what_cannot_be_used_is_refused(make, message):
    with pytest.raises(jaxsvm.InputError, match=message):
        make(jaxsvm.svm_problem(gram(), data()[1]))


# --- callbacks and Ctrl-C


@pytest.mark.parametrize("problem", [jaxsvm.svm_problem, FREE])
def test_the_callback_gets_every_place_once(problem):
    Cs, seen = [0.3, 0.1, 0.2, 0.1, 0.5], {}

    def callback(place, fit):
        assert place not in seen
        seen[place] = fit

    path = jaxsvm.check(jaxsvm.solve_path(problem(gram(), data()[1]), Cs, callback=callback))
    assert sorted(seen) == [0, 1, 2, 3, 4]
    for place, fit in seen.items():
        np.testing.assert_array_equal(fit.alpha, path.alphas[place])
        assert fit.certificate.relative_gap == path.certificate.relative_gap[place]
        assert fit.status.name == "CONVERGED"


def test_a_fault_in_the_callback_is_raised():
    def callback(place, fit):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), [1.0, 2.0], callback=callback)


def _interrupted(**options):
    """A path that survives Ctrl-C: what was reached is certified, the rest INTERRUPTED and claims nothing."""
    Cs = np.geomspace(1e-2, 1e3, 24)
    try:
        with warnings.catch_warnings(action="ignore", category=jaxsvm.ConvergenceWarning):
            path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, tol=1e-6, **options)
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C came through")
    gaps = np.asarray(path.certificate.relative_gap)
    assert not np.isnan(gaps).any()
    assert np.isfinite(np.asarray(path.alphas)).all()
    np.testing.assert_array_equal(np.asarray(path.status) == Status.CONVERGED, gaps <= 1e-6)
    assert set(path.status.name) <= {"CONVERGED", "INTERRUPTED"}
    K = kernel_of(gram())
    for C, fit, gap in [(C, fit, gap) for C, fit, gap in zip(Cs, path, gaps, strict=True) if np.isfinite(gap)]:
        assert oracle.relative_gap_direct(K, data()[1], C, np.asarray(fit.alpha)) <= float(gap) * (1 + 1e-9) + 1e-9
    return path


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize("call", [1, 3, 5])
def test_ctrl_c_keeps_what_was_found(monkeypatch, call, how):
    """The driver that is running when Ctrl-C comes ends as INTERRUPTED; a handler of the user's own raises."""
    seen = []

    def drive(problem, solver, *arguments, stop, **options):
        seen.append(threading.current_thread() is threading.main_thread())  # where Python delivers Ctrl-C
        now = seen[-1] and sum(seen) == call
        if now and how == "raised":
            raise KeyboardInterrupt
        if now:
            stop.note()
        return loop.drive(problem, solver, *arguments, stop=stop, **options)

    monkeypatch.setattr(anchors, "drive", drive)
    monkeypatch.setattr(coarse_to_fine, "drive", drive)
    path = _interrupted()
    assert "INTERRUPTED" in path.status.name
    assert sum(seen) == call  # nothing new is begun
    if call > 1:
        assert "CONVERGED" in path.status.name


# --- compilation


def test_a_second_path_compiles_nothing():
    """Values of C, gamma, tol and weights are traced: another path of as many values runs the same programs."""
    x, y = data()
    rng = np.random.default_rng(0)

    def run(gamma, low, high, tol, weight):
        here = jaxsvm.gram(RBF(gamma=gamma), x)
        return jaxsvm.solve_path(
            jaxsvm.svm_problem(here, y, sample_weight=weight), np.geomspace(low, high, 20), tol=tol
        )

    for weight in (None, rng.uniform(0.5, 2.0, N)):
        run(0.5, 1e-2, 1e2, 1e-4, weight)
        run(1.0, 1e-1, 1e4, 1e-6, weight)  # takes every branch: a polish, a value finished on the whole
        with compilations() as seen:
            path = run(0.7, 2e-2, 3e3, 3e-5, None if weight is None else 2 * weight)
        assert set(path.status.name) == {"CONVERGED"}
        assert len(seen) == 0


PROGRAMS = [compiled.begin_program, compiled._burst, compiled._certify]
PROGRAMS += [
    value
    for module in (anchors, coarse_to_fine)
    for name, value in vars(module).items()
    if hasattr(value, "_cache_size") and value.__module__ == module.__name__
]


def test_sixty_four_values_compile_few_programs():
    n = 90  # a size of its own
    x, y = data(n)
    here = jaxsvm.gram(RBF(gamma=0.5), x)
    before = [program._cache_size() for program in PROGRAMS]
    jaxsvm.check(jaxsvm.solve_path(jaxsvm.svm_problem(here, y), np.geomspace(1e-3, 1e3, 64)))
    grown = [program._cache_size() - count for program, count in zip(PROGRAMS, before, strict=True)]
    assert compiled._burst._cache_size() > 0
    assert sum(grown[:4]) <= 6  # the driver: from nothing, from weights, from weights and margins
    assert sum(grown) <= 14  # and the small ones
    assert max(grown) <= 3


def test_settings_of_the_calling_thread_hold_in_all_threads():
    """`jax.enable_x64` as a context is a thread's own: those of the schedule must not compute in another dtype."""
    Cs = np.geomspace(0.01, 1e3, 20)
    expected = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, tol=1e-6)
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, tol=1e-6)
    finally:
        jax.config.update("jax_enable_x64", True)
    assert path.alphas.dtype == jnp.float64
    judge(path, Cs, kernel_of(gram()), data()[1], 1e-6)
    np.testing.assert_array_equal(path.alphas, expected.alphas)


# --- the order in which values are solved


@pytest.mark.parametrize("seed", range(2))
def test_anchors_are_no_further_apart_than_need_be(seed):
    rng = np.random.default_rng(seed)
    logs = np.sort(rng.uniform(-5, 5, rng.integers(2, 70)))
    places = anchors.anchors(logs)
    assert places[0] == 0
    assert places[-1] == len(logs) - 1
    assert (np.diff(places) > 0).all()
    reach = np.log(anchors.MEASURED.factor_between_anchors) + 1e-8
    for a, b in zip(places, places[1:], strict=False):
        assert b == a + 1 or logs[b] - logs[a] <= reach
        assert b == len(logs) - 1 or logs[b + 1] - logs[a] > reach - 2e-8  # the furthest within reach


@pytest.mark.parametrize("free", [False, True])
def test_a_combination_is_the_best_of_the_span(free):
    """Of all multiples of points on the line through two, none has a larger dual objective."""
    rng = np.random.default_rng(0)
    M = rng.normal(size=(12, 12))
    B, ridge = M @ M.T, rng.uniform(0.1, 2, 12)
    a, b = rng.uniform(0, 1, (2, 12))
    b = a + (rng.normal(size=12) if free else b)
    x, f = anchors.combination(ridge, (a, B @ a), (b, B @ b), np.inf if free else 1.0)
    np.testing.assert_allclose(f, B @ x, rtol=1e-9)

    def dual(x):
        return x.sum() - x @ (B @ x + ridge * x) / 2

    weights = np.linspace(0, 20 if free else 1, 401)
    for w in weights:
        point = a + w * (b - a)
        assert dual(point * point.sum() / (point @ (B @ point + ridge * point))) <= dual(np.asarray(x)) + 1e-9


def test_a_combination_of_equal_points_is_that_point():
    x, f = np.array([1.0, 2.0]), np.array([1.0, 0.5])
    found, margins = anchors.combination(np.ones(2), (x, f), (x, f), 1.0)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.asarray(margins) / f, np.asarray(found) / x)


@pytest.mark.thorough
@pytest.mark.parametrize("Cs", [[100.0], [1.0, 50.0, 200.0, 1000.0]])
def test_steep_values_of_many_samples_are_solved_by_sets(monkeypatch, Cs):
    """Also where the first value is one, and where what float32 claimed on the way has to be finished."""
    monkeypatch.setattr(anchors, "MEASURED", dataclasses.replace(anchors.MEASURED, samples_for_working_sets=100))
    used = []
    drive = anchors.drive
    monkeypatch.setattr(anchors, "drive", lambda *args, **more: used.append(args[1]) or drive(*args, **more))
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    y = np.where(x[:, 0] + 0.7 * rng.normal(size=300) > 0, 1, -1)
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=0.5), x), y, 1.0)
    path = jaxsvm.solve_path(problem, Cs, tol=1e-3)
    assert any(isinstance(solver, jaxsvm.WorkingSet) for solver in used)
    assert (np.asarray(path.fits.status.code) == Status.CONVERGED).all()
    K = np.exp(-0.5 * ((x[:, None].astype(float) - x) ** 2).sum(-1)) + 1
    for place, C in enumerate(Cs):
        coefficients = np.asarray(path.fits.dual_coef[place], float)
        f, beta = K @ coefficients, np.abs(coefficients)
        norm = coefficients @ f
        primal = norm / 2 + C / 2 * (np.maximum(0, 1 - y * f) ** 2).sum()
        dual = beta.sum() - (norm + beta @ beta / C) / 2
        assert -1e-9 <= (primal - dual) / primal <= 1.2e-3
