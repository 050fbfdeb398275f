"""Warm chains, in lanes too, and with reductions; several problems on one Gram operator."""

import dataclasses
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
from test_path import GRID, N, compilations, data, gram, judge, kernel_of

import jaxsvm
from jaxsvm import FrankWolfe
from jaxsvm.kernels import RBF, Linear
from jaxsvm.loop import small
from jaxsvm.loop.interruption import Interruption, watching
from jaxsvm.loop.measured import MEASURED
from jaxsvm.path import chains
from jaxsvm.path.carried_chain import next_start
from jaxsvm.path.chains import point_of, products_of

SOLVER = FrankWolfe(tol=1e-5)


@pytest.mark.parametrize("lanes", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_lanes_answer_for_every_value(lanes):
    Cs = np.concatenate([GRID[::-1], GRID[:2]])
    path = jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), Cs, solver=SOLVER, lanes=lanes)
    judge(path, Cs, kernel_of(gram()), data()[1], 1e-5)


@pytest.mark.thorough
def test_other_values_compile_nothing():
    options = {"tol": 1e-5, "lanes": 4}
    jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), GRID, **options)
    with compilations() as seen:
        jaxsvm.solve_path(jaxsvm.svm_problem(gram(), data()[1]), GRID * 1.01, **options)
    assert not seen


def test_ctrl_c_waits_for_the_lanes(monkeypatch):
    """The problem that runs is solved; the next one is not begun."""
    compiled = chains._chains  # noqa: SLF001

    def pressed(*arguments, **options):
        solved = jax.block_until_ready(compiled(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return solved

    monkeypatch.setattr(chains, "_chains", pressed)
    problems = [jaxsvm.svm_problem(gram(), y) for y in three_classes()[:2]]
    path = jaxsvm.solve_path(problems, GRID, tol=1e-5, lanes=3)
    assert path.status.name.tolist() == [["CONVERGED"] * len(GRID), ["INTERRUPTED"] * len(GRID)]
    with pytest.raises(KeyboardInterrupt):
        jaxsvm.solve_path(problems[0], GRID, tol=1e-5, lanes=3, interrupt="raise")


# --- several problems on one Gram operator


def three_classes():
    x, _ = data()
    classes = np.digitize(x[:, 0], [-0.5, 0.5])
    return np.stack([np.where(classes == k, 1.0, -1.0) for k in range(3)])


def of_classes(n=N):
    here = jaxsvm.gram(RBF(gamma=0.5), data()[0][:n])
    return [jaxsvm.svm_problem(here, y[:n]) for y in three_classes()]


@pytest.mark.thorough
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
    codes = np.asarray(path.status.code)
    lane = next(place for place in np.ndindex(codes.shape) if codes[place] != jaxsvm.Status.CONVERGED)
    assert lane[1] == 1  # which problems end there depends on rounding
    with pytest.raises(jaxsvm.ConvergenceError, match=rf"lane \({lane[0]}, 1\): STALLED"):
        jaxsvm.check(path)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: jaxsvm.solve_path(of_classes(), [1.0], callback=print), "one problem"),
        (lambda: jaxsvm.solve_path([], [1.0]), "empty"),
        (lambda: jaxsvm.solve_path([jaxsvm.meb_problem(gram())], [1.0]), "no C"),
        (lambda: jaxsvm.solve_path([*of_classes(), of_classes(40)[0]], [1.0]), "numbers of samples"),
        (lambda: jaxsvm.solve_path(of_classes()[0], [1.0], callback=print, lanes=2), "callback is set and lanes"),
        (lambda: jaxsvm.solve_path(of_classes(), [1.0], max_seconds=9, lanes=2), "max_seconds is set and lanes"),
        (lambda: jaxsvm.solve_path(of_classes(), [1.0], screen=jaxsvm.screening.two_sided_test), "its C"),
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


# --- whatever the problem


@pytest.mark.thorough
def test_a_fold_of_a_free_bias_leaves_its_absent_samples_out(monkeypatch):
    """From 4,097 samples on, where steps do not go along whole rows: the equality has to be that of what is kept."""
    x, y = samples.data()
    present = np.where(np.arange(len(y)) % 5 > 0, 1.0, 0.0)
    whole = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), x, store=True), y, bias="free").weighted(present)
    alone = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), x[present > 0], store=True), y[present > 0], bias="free")
    Cs = [0.1, 0.3, 1.0, 3.0]
    expected = jaxsvm.solve_path(alone, Cs, tol=1e-5).certificate.primal
    measured = dataclasses.replace(MEASURED, samples_of_a_small_problem=16, samples_of_whole_rows=8)
    monkeypatch.setattr("jaxsvm.loop.small.MEASURED", measured)
    monkeypatch.setattr("jaxsvm.numerics.sizes.size_classes", lambda n: (48, n))
    monkeypatch.setattr("jaxsvm.path.carried_chain.MEASURED", measured)
    jax.clear_caches()
    path = jaxsvm.check(jaxsvm.solve_path(whole, Cs, tol=1e-5).fits)
    np.testing.assert_allclose(path.certificate.primal, expected, rtol=2e-5)
    jax.clear_caches()


@pytest.mark.thorough
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
    parts.clear()
    path = jaxsvm.check(jaxsvm.solve_path(problem, Cs, solver=solver, screen=jaxsvm.screening.ball_test_1).fits)
    assert len(parts) > 1 and any(len(part.alpha) < 300 for part in parts)
    assert int(path.steps.sum()) == sum(int(part.steps) for part in parts) <= 2 * int(plain.steps.sum())
    assert path.kernel_evaluations.sum() == sum(part.kernel_evaluations for part in parts)


@pytest.mark.parametrize("bias", ["free", "regularized", "none"])
def test_what_takes_many_steps_is_continued_by_sets(bias, monkeypatch):
    """From the last value that the program of small chains solved, in folds too, and in any order of the values."""
    monkeypatch.setattr(small, "MEASURED", dataclasses.replace(MEASURED, samples_at_once=16))  # as of many samples
    monkeypatch.setattr(small, "STEPS_BEFORE_SETS", 300)
    begun, at, (x, y) = [], chains.point_at, data(200)
    monkeypatch.setattr("jaxsvm.path.carried_chain.point_at", lambda *of: begun.append(float(of[1].C)) or at(*of))
    problem, Cs = jaxsvm.hinge_problem(jaxsvm.gram(RBF(gamma=0.5), x), y, bias=bias), np.geomspace(1e2, 1e-2, 9)
    path = jaxsvm.check(jaxsvm.solve_path(problem, Cs, tol=1e-4).fits)
    assert len(begun) == 1 and Cs.min() < begun[0] < Cs.max()
    folds = jaxsvm.cross_validate(problem, Cs, 3, tol=1e-4)
    assert len(begun) == 4 and folds.status.tally() == "27 CONVERGED"
    monkeypatch.undo()
    by_itself = jaxsvm.solve_path(problem, Cs, solver=jaxsvm.SMO(tol=1e-6)).fits
    np.testing.assert_allclose(path.certificate.primal, by_itself.certificate.primal, rtol=1e-4)


def knows_nothing(problem, fit, C_ref):
    found = jaxsvm.screening.ball_test_1(problem, fit, C_ref)
    return found._replace(inactive=np.zeros(problem.n, bool), at_bound=np.zeros(problem.n, bool))


@pytest.mark.parametrize("store", [True, False])
def test_a_rule_leaves_samples_out_of_a_hinge_path(store, monkeypatch):
    """A named one of a stored Gram operator too: steps look at the kernel values of what is not known alone. Where no
    values are stored one is the default."""
    monkeypatch.setattr(
        small, "MEASURED", dataclasses.replace(MEASURED, samples_of_a_small_problem=16)
    )  # as of many samples
    x, y = data(300)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(gamma=0.5), x, store=store), y, bias="none")
    Cs = np.linspace(5, 5.4, 5)
    rules = (None, jaxsvm.screening.ball_test_1) if store else (knows_nothing, None)
    plain, screened = (jaxsvm.solve_path(problem, Cs, tol=1e-5, screen=rule) for rule in rules)
    np.testing.assert_allclose(jaxsvm.check(screened.fits).certificate.primal, plain.certificate.primal, rtol=2e-5)
    read, all_rows = (path.fits.kernel_evaluations for path in (screened, plain))
    # The first two values show what a set reads: from the third on the rule decides, but sets read few stored rows.
    assert read.sum() <= (1 if store else 0.9) * all_rows.sum()
    assert read[2:].sum() <= (1 if store else 0.7) * all_rows[2:].sum()


def test_the_next_start_is_the_best_multiple_and_keeps_bounds():
    """One rounding of the factor left samples an ulp of room, and all of them entered working sets."""
    y, C = data()[1], 0.01
    with jax.enable_x64(True):
        problem = jaxsvm.hinge_problem(gram(), y, C, bias="free")
        fit = jaxsvm.fit(problem, tol=1e-8)
        point = point_of(problem, jaxsvm.SMO(), fit.alpha, products_of(problem, fit.alpha))
        bound = np.asarray(fit.alpha) == np.asarray(problem.upper)
        assert bound.sum() > N / 2
        for factor in np.linspace(1.01, 3, 20):
            start = np.asarray(next_start(problem.at(C * factor), point, None).start)
            assert (start[bound] == np.asarray(problem.at(C * factor).upper)[bound]).all()
        separable = jaxsvm.hinge_problem(gram(), np.where(data()[0][:, 0] > 0, 1, -1), 1e6, bias="free")
        fit = jaxsvm.fit(separable, tol=1e-6)
        point = point_of(separable, jaxsvm.SMO(), fit.alpha, products_of(separable, fit.alpha))
        start = next_start(separable.at(2e6), point, None).start
        np.testing.assert_allclose(start, fit.alpha, rtol=1e-3)  # no loss: the solution does not depend on C


def test_from_its_first_value_on_a_chain_has_something_to_keep():
    """The command leaves at once at a Ctrl-C as long as nothing has `begun`: it lost 279 certified values."""
    stop, begun = Interruption(), []
    x = np.eye(4, dtype=np.float32)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), np.array([1, -1, 1, -1]))
    fit = jaxsvm.fit(problem, jaxsvm.SMO())

    def link(at):
        begun.append(stop.begun)
        return fit

    with watching(stop):
        chains.chain_on_host(problem, np.array([1.0, 2.0, 4.0]), link, None, stop)
    assert begun == [False, True, True]
