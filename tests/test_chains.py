"""Warm chains in lanes: loaded, moved together, interrupted; several problems on one Gram operator."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import samples
from test_path import GRID, N, compilations, data, gram, judge, kernel_of

import jaxsvm
from jaxsvm import FrankWolfe, Status
from jaxsvm.gram.dense import with_values
from jaxsvm.kernels import RBF
from jaxsvm.path import chain_lanes, chains
from jaxsvm.path.measured import MEASURED
from jaxsvm.path.reduction import Kept, NearMargin

SOLVER = FrankWolfe(tol=1e-5)


@pytest.fixture
def widths(monkeypatch):
    """How many lanes each round had."""
    seen = []
    advance = chain_lanes._advance  # noqa: SLF001 (what a round costs is what these tests are about)

    def counted(shared, own, solver, progress, shape):
        seen.append(progress.status.shape[0])
        return advance(shared, own, solver, progress, shape)

    monkeypatch.setattr(chain_lanes, "_advance", counted)
    return seen


@pytest.mark.parametrize("lanes", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_lanes_answer_for_every_value(widths, lanes):
    Cs = np.concatenate([GRID[::-1], GRID[:2]])
    found = {}
    path = jaxsvm.solve_path(
        jaxsvm.svm_problem(gram(), data()[1]), Cs, solver=SOLVER, lanes=lanes, callback=found.__setitem__
    )
    judge(path, Cs, kernel_of(gram()), data()[1], 1e-5)
    assert sorted(found) == list(range(len(Cs)))
    for place, fit in found.items():
        np.testing.assert_array_equal(fit.alpha, path.alphas[place])
    assert max(widths) == widths[0] == min(lanes, len(Cs))


def test_lanes_with_nothing_left_are_left_out(widths):
    """One value is far harder than the others: in the end it runs alone, and widths fall in powers of two."""
    path = jaxsvm.solve_path(
        jaxsvm.svm_problem(gram(), data()[1]), [0.01, 0.02, 0.03, 0.04, 1e6], solver=SOLVER, lanes=5
    )
    assert set(path.status.name) == {"CONVERGED"}
    assert widths[0] == 5
    assert widths[-1] == 1
    assert set(widths[1:]) <= {5, 4, 2, 1}
    assert sorted(widths, reverse=True) == widths


def test_lanes_share_the_gram_operator():
    here = with_values(gram())
    shape = chain_lanes._Shape.of(*(jaxsvm.svm_problem(here, data()[1], C) for C in (1.0, 2.0)))  # noqa: SLF001
    problem = jaxsvm.svm_problem(here, data()[1], 3.0)
    assert any(leaf is problem.gram.K for leaf in shape.shared(problem))
    assert max(leaf.size for leaf in shape.own(problem)) == N
    chex_leaves = jax.tree.leaves(shape.join(shape.shared(problem), shape.own(problem)))
    assert all(a is b for a, b in zip(chex_leaves, jax.tree.leaves(problem), strict=True))


@pytest.mark.slow
def test_a_lane_that_stalls_leaves_the_others_alone():
    Cs, y = [1e8, 1.0, 1e3, 10.0, 0.01], data()[1]
    with pytest.warns(jaxsvm.ConvergenceWarning, match="STALLED"):
        path = jaxsvm.solve_path(jaxsvm.svm_problem(gram("float32"), y), Cs, tol=1e-4, lanes=3)
    assert list(path.status.name) == ["STALLED"] + ["CONVERGED"] * 4
    rest = jax.tree.map(lambda leaf: leaf[1:], path)
    judge(rest, Cs[1:], kernel_of(gram("float32")), y, 1e-4)


def test_other_values_compile_nothing():
    options = {"tol": 1e-5, "lanes": 4}
    jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), GRID, **options)
    with compilations() as seen:
        jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), GRID * 1.01, **options)
    assert not seen


@pytest.mark.parametrize("call", [0, 1, 3])
def test_ctrl_c_keeps_what_was_found(monkeypatch, call):
    calls, advance = [], chain_lanes._advance  # noqa: SLF001

    def pressed(*arguments):
        if len(calls) == call:
            raise KeyboardInterrupt
        calls.append(None)
        return advance(*arguments)

    monkeypatch.setattr(chain_lanes, "_advance", pressed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jaxsvm.ConvergenceWarning)
        path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), GRID, tol=1e-6, lanes=3)
    gaps, K = np.asarray(path.certificate.relative_gap), kernel_of(gram())
    assert "INTERRUPTED" in set(path.status.name)
    assert set(path.status.name) <= {"CONVERGED", "INTERRUPTED"}
    assert (np.asarray(path.status) == Status.CONVERGED).sum() == (gaps <= 1e-6).sum()
    for C, fit, gap in [(C, fit, gap) for C, fit, gap in zip(GRID, path, gaps, strict=True) if np.isfinite(gap)]:
        assert oracle.relative_gap_direct(K, data()[1], C, np.asarray(fit.alpha)) <= float(gap) * (1 + 1e-9) + 1e-9


# --- several problems on one Gram operator
# -------------------------------------------------------------------------------------


def three_classes():
    x, _ = data()
    classes = np.digitize(x[:, 0], [-0.5, 0.5])
    return np.stack([np.where(classes == k, 1.0, -1.0) for k in range(3)])


def of_classes(n=N):
    here = jaxsvm.gram(RBF(gamma=0.5), data()[0][:n])
    return [jaxsvm.svm_problem(here, y[:n]) for y in three_classes()]


@pytest.mark.parametrize("options", [{}, {"solver": SOLVER}, {"lanes": 2}], ids=["refined", "chain", "lanes"])
def test_one_class_against_the_rest(options):
    signs, Cs = three_classes(), [10.0, 0.1, 1.0]
    path = jaxsvm.solve_path([jaxsvm.svm_problem(gram(), y) for y in signs], Cs, tol=1e-5, **options)
    assert path.alphas.shape == (3, 3, N)
    assert len(path) == 3
    for y, one in zip(signs, path, strict=True):
        judge(one, Cs, kernel_of(gram()), y, 1e-5)
    jaxsvm.check(path)


@pytest.mark.parametrize("make", [jaxsvm.svm_problem, jaxsvm.hinge_problem])
def test_a_traced_path_of_concrete_problems_has_their_samples(make):
    """They are padded to a size class on the way, which nobody is to see."""
    problem = make(gram(), data()[1])
    fits = jax.eval_shape(lambda Cs: jaxsvm.solve_path(problem, Cs).fits, jnp.ones(2))
    assert fits.alpha.shape == fits.margins.shape == fits.dual_coef.shape == (2, N)


@pytest.mark.slow
def test_several_problems_under_tracing():
    signs, Cs = jnp.asarray(three_classes()), jnp.asarray([10.0, 0.1, 1.0])
    problems = [jaxsvm.svm_problem(gram(), y) for y in signs]
    path = jax.jit(lambda Cs: jaxsvm.solve_path(problems, Cs, tol=1e-5))(Cs)
    assert path.alphas.shape == (3, 3, N)
    for y, one in zip(three_classes(), path, strict=True):
        judge(one, Cs, kernel_of(gram()), y, 1e-5)


def test_folds_as_weights_and_kernels_as_a_list():
    x, y = data()
    weights = np.ones((2, N))
    weights[0, ::2] = weights[1, 1::2] = 0
    grams = [jaxsvm.gram(RBF(gamma=gamma), x) for gamma in (0.2, 0.5, 1.5)]
    pairs = [(here, weight) for here in grams for weight in weights]
    problems = [jaxsvm.svm_problem(here, y).weighted(weight) for here, weight in pairs]
    path = jaxsvm.solve_path(problems, [1.0, 10.0], tol=1e-5)
    assert path.alphas.shape == (6, 2, N)
    for (here, weight), one in zip(pairs, path, strict=True):
        judge(one, [1.0, 10.0], kernel_of(here), y, 1e-5, weight=weight)


def test_check_names_the_lane_of_a_problem():
    signs = three_classes()
    with pytest.warns(jaxsvm.ConvergenceWarning):
        problems = [jaxsvm.svm_problem(gram("float32"), y) for y in signs[:2]]
        path = jaxsvm.solve_path(problems, [1.0, 1e12], tol=1e-4)
    with pytest.raises(jaxsvm.ConvergenceError, match=r"lane \(0, 1\): STALLED"):
        jaxsvm.check(path)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: jaxsvm.solve_path(of_classes(), [1.0], callback=print), "one problem"),
        (lambda: jaxsvm.solve_path([], [1.0]), "empty"),
        (lambda: jaxsvm.solve_path([jaxsvm.meb_problem(gram())], [1.0]), "no C"),
        (lambda: jaxsvm.solve_path([*of_classes(), of_classes(40)[0]], [1.0]), "numbers of samples"),
        (lambda: jaxsvm.solve_path(of_classes(), [1.0], reduction=NearMargin(), lanes=2), "lanes"),
        (lambda: jaxsvm.solve_path(of_classes(), [1.0], reduction=lambda problem: None), "old problem"),
        (lambda: jaxsvm.solve_path(of_classes(), [1.0], reduction=NearMargin), "NearMargin()"),
        (lambda: jaxsvm.solve_path(of_classes(), [1.0], screen=jaxsvm.screening.dome_test), "its C"),
        (lambda: jaxsvm.solve_path(of_classes(), [1.0], screen=NearMargin()), "for `reduction=`"),
        (lambda: jaxsvm.solve_path(jaxsvm.slack_problem(gram(), data()[1], 0.1), [1.0], reduction=NearMargin()), "red"),
    ],
)
def test_bad_lists_of_problems_are_refused(call, word):
    with pytest.raises(jaxsvm.InputError, match=word):
        call()


def test_a_path_of_problems_has_an_end():
    path = jaxsvm.solve_path(of_classes(), [1.0, 2.0], tol=1e-3)
    assert path[-1].alphas.shape == (2, N)
    with pytest.raises(IndexError, match="3 problems"):
        path[3]


# --- reductions
# -------------------------------------------------------------------------------------------------------------


REDUCTIONS = {"near": NearMargin(0.5), "wrong": NearMargin(0.0)}  # safe rules: tests/test_screening.py
"""A new one is tested by joining."""


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(jaxsvm.svm_problem, marks=pytest.mark.slow),
        functools.partial(jaxsvm.hinge_problem, bias="free"),
    ],
)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_costs_nothing_of_the_truth(monkeypatch, make, name):
    """Right or wrong, every answer is certified on the whole problem."""
    x, y = data(700)
    y = np.where(x[:, 0] + 0.3 * x[:, 1] > 0, 1.0, -1.0)
    problem, Cs = make(jaxsvm.gram(RBF(gamma=0.5), x), y), [1.0, 3.0, 10.0]
    sizes, drive = [], chains.drive

    def counted(problem, *arguments, **options):
        sizes.append(problem.n)
        return drive(problem, *arguments, **options)

    monkeypatch.setattr(chains, "drive", counted)
    path = jaxsvm.check(jaxsvm.solve_path(problem, Cs, tol=1e-5, reduction=REDUCTIONS[name]))
    if isinstance(REDUCTIONS[name], NearMargin):  # a safe rule may find nothing between values that far apart
        assert min(sizes) < 700
    # What is solved without the others answers for all where it is right, and is a start where it is not.
    assert sizes.count(700) == (1 if name == "near" else len(Cs))
    plain = jaxsvm.solve_path(problem, Cs, tol=1e-5)
    np.testing.assert_allclose(path.certificate.primal, plain.certificate.primal, rtol=2e-5)


def test_a_reduction_sees_both_problems_and_the_fit_between():
    seen = []

    def nothing(old, fit, new):
        seen.append((float(old.C), float(fit.certificate.relative_gap), float(new.C)))
        return Kept(jnp.ones((N,), bool), jnp.zeros((N,)))

    problem = jaxsvm.svm_problem(gram(), data()[1])
    jaxsvm.check(jaxsvm.solve_path(problem, [10.0, 0.1, 1.0], tol=1e-4, reduction=nothing))
    assert [(old, new) for old, _, new in seen] == [(0.1, 1.0), (1.0, 10.0)]
    assert all(gap <= 1e-4 for _, gap, _ in seen)


# --- whatever the problem


@pytest.mark.parametrize("lanes", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_path_in_any_order_with_repeats(lanes):
    Cs = np.array([8.0, 0.1, 2.0, 8.0, 0.5])
    path = jaxsvm.solve_path(samples.svm(), Cs, tol=1e-6, lanes=lanes)
    jaxsvm.check(path)
    assert path.alphas.shape == (5, 60)
    np.testing.assert_allclose(path.Cs, Cs)
    for C, fit in zip(Cs, path, strict=True):
        assert float(fit.certificate.dual) <= samples.exact(C).optimum * (1 + 1e-12)
        assert float(fit.certificate.primal) >= samples.exact(C).optimum * (1 - 1e-12)
        assert float(fit.certificate.relative_gap) <= 1e-6


def test_traced_path_agrees_with_the_host():
    Cs = jnp.array([4.0, 0.5, 1.0])
    chain = jaxsvm.solve_path(samples.svm(), Cs, solver=jaxsvm.FrankWolfe(tol=1e-4))
    refined = jaxsvm.solve_path(samples.svm(), Cs, tol=1e-4)
    traced = jax.jit(lambda Cs: jaxsvm.solve_path(samples.svm(), Cs, tol=1e-4))(Cs)
    np.testing.assert_allclose(chain.alphas, traced.alphas, atol=2e-6)  # rounding alone, which some steps amplify
    assert (np.asarray(chain.steps) == np.asarray(traced.steps)).all()
    assert list(traced.status.name) == list(refined.status.name) == ["CONVERGED"] * 3
    np.testing.assert_allclose(refined.certificate.dual, traced.certificate.dual, rtol=1e-4)


def test_paths_of_hinge_problems():
    Cs = [10.0, 0.1, 1.0]
    for bias in ("free", "none"):
        make = functools.partial(samples.hinge, bias=bias)
        path = jaxsvm.check(jaxsvm.solve_path(make(), Cs, tol=1e-6))
        for C, fit in zip(Cs, path, strict=True):
            alone = jaxsvm.fit(make(C), jaxsvm.SMO(tol=1e-8))
            assert float(fit.certificate.primal) == pytest.approx(float(alone.certificate.primal), rel=2e-6)


@pytest.mark.parametrize("small", [16, 1024])
def test_a_fold_of_a_free_bias_leaves_its_absent_samples_out(monkeypatch, small):
    """From 4,097 samples on, where steps do not go along whole rows: the equality has to be that of what is kept."""
    x, y = samples.data()
    present = np.where(np.arange(len(y)) % 5 > 0, 1.0, 0.0)
    whole = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), x, store=True), y, bias="free").weighted(present)
    alone = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), x[present > 0], store=True), y[present > 0], bias="free")
    Cs = [0.1, 0.3, 1.0, 3.0]
    expected = jaxsvm.solve_path(alone, Cs, tol=1e-5).certificate.primal
    measured = dataclasses.replace(MEASURED, samples_of_whole_rows=8, samples_of_short_rows=small)
    monkeypatch.setattr("jaxsvm.path.screened.size_classes", lambda n: (48, n))
    for module in ("screened", "next_value"):
        monkeypatch.setattr(f"jaxsvm.path.{module}.MEASURED", measured)
    jax.clear_caches()
    path = jaxsvm.check(jaxsvm.solve_path(whole, Cs, tol=1e-5).fits)
    np.testing.assert_allclose(path.certificate.primal, expected, rtol=2e-5)
    jax.clear_caches()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_counters_of_a_chain_are_those_of_all_that_was_solved(monkeypatch, dtype):
    """Of reduced problems too; in float32 they end at gaps near its rounding, as the whole ones do."""
    x, y = data(300)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(gamma=0.5), x.astype(dtype)), y, bias="none")
    parts, drive = [], chains.drive

    def counted(*arguments, **options):
        parts.append(drive(*arguments, **options))
        return parts[-1]

    monkeypatch.setattr(chains, "drive", counted)
    solver, Cs = jaxsvm.SMO(tol=2e-6), [5.0, 5.2, 5.4]
    plain = jaxsvm.check(jaxsvm.solve_path(problem, Cs, solver=solver).fits)
    for reduced in ({"screen": jaxsvm.screening.ball_test_1}, {"reduction": NearMargin(0.3)}):
        parts.clear()
        path = jaxsvm.check(jaxsvm.solve_path(problem, Cs, solver=solver, **reduced).fits)
        assert len(parts) > 1 and any(len(part.alpha) < 300 for part in parts)
        assert int(path.steps.sum()) == sum(int(part.steps) for part in parts) <= 2 * int(plain.steps.sum())
        assert path.kernel_evaluations.sum() == sum(part.kernel_evaluations for part in parts)


@pytest.mark.parametrize("store", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_named_rule_leaves_samples_out_of_a_hinge_path(store):
    """Of a stored Gram operator too: steps look at the kernel values of what is not known alone."""
    x, y = data(300)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(gamma=0.5), x, store=store), y, bias="none")
    Cs = np.linspace(5, 5.4, 5)
    plain, screened = (
        jaxsvm.solve_path(problem, Cs, tol=1e-5, screen=rule) for rule in (None, jaxsvm.screening.ball_test_1)
    )
    np.testing.assert_allclose(jaxsvm.check(screened.fits).certificate.primal, plain.certificate.primal, rtol=2e-5)
    assert screened.fits.kernel_evaluations.sum() < 0.7 * plain.fits.kernel_evaluations.sum()
