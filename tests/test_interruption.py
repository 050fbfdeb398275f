"""Real SIGINTs at random moments: every long call ends within a second, and nothing that was certified is lost.

The calls, and what is checked of their answers, are those of `interrupted.py`, which runs in a process of its own.
"""

import dataclasses
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import interrupted
import jax
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import jaxsvm
from jaxsvm import designs
from jaxsvm.designs.places import arrays
from jaxsvm.estimators import SVC, SVR, NuSVC, SVCPath
from jaxsvm.kernels import RBF
from jaxsvm.loop import bursts, many
from jaxsvm.loop import small as small_loop
from jaxsvm.loop.interruption import Interruption, run_passes, unless, until_halt, watching, workers
from jaxsvm.path import carried_chain

HERE = Path(__file__).resolve().parent
SECONDS = float(os.environ.get("JAXSVM_TEST_SECONDS", "1"))
"""How long a call may go on after the signal, on a machine that is not busy otherwise."""
LENIENT = 10.0
"""The same in the default suite, which shares its cores: a call that is not interrupted goes on for longer."""

ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
    "JAX_ENABLE_X64": "1",
    "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAXSVM_TEST_CACHE", str(HERE.parent / ".jax-cache")),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}


class Worker:
    """A process of `interrupted.py`, warmed up."""

    def __init__(self, kind):
        command = [sys.executable, str(HERE / "interrupted.py"), kind]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, env=ENVIRONMENT, **pipes)
        self.seconds = float(self.line().split()[1])

    def line(self):
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        return line

    def trial(self, share):
        """Seconds from the signal to the end, and the outcome; None where the call had ended before."""
        self.process.stdin.write("\n")
        assert self.line() == "begin\n"
        time.sleep(share * self.seconds)
        sent = time.time()
        self.process.send_signal(signal.SIGINT)
        report = json.loads(self.line())
        return None if report["ended"] < sent else (report["ended"] - sent, report["outcome"])

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def trials(kind, count, limit):
    """Signals at random moments of one kind of call; how long each took to end."""
    worker, rng, took, missed = Worker(kind), random.Random(kind), [], 0
    while len(took) < count:
        # A call may take less time than when it was measured, beside others: then the signal comes sooner.
        found = worker.trial(rng.uniform(0.02, 0.7) / (1 + missed))
        if found is None:
            missed += 1
            assert missed < 10 * count
            continue
        took.append(found[0])
        print(f"{kind}: {found[0]:.2f} s of {worker.seconds:.1f}, {found[1]}")
    worker.close()
    assert max(took) < limit, took
    return took


def test_ctrl_c():
    trials("fit", 2, LENIENT)


FIFTY = {
    "fit": 7, "hinge fit": 8, "path": 6, "chain": 11, "newton chain": 3, "folds": 5,
    "hinge folds": 2, "tune": 4,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", FIFTY)
def test_fifty_of_them(kind):
    trials(kind, FIFTY[kind], SECONDS)


@pytest.mark.parametrize(
    "seconds", [0.4, pytest.param(1.0, marks=pytest.mark.slow), pytest.param(3.0, marks=pytest.mark.slow)]
)
def test_ctrl_c_while_the_command_starts(tmp_path, seconds):
    """In its imports, its reading and its compilations: no traceback, and it is not lost."""
    table = tmp_path / "data.csv"
    np.savetxt(table, np.column_stack([interrupted.X, interrupted.Y]), delimiter=",", header="a,b,c,y", comments="")
    command = [sys.executable, "-m", "jaxsvm", "path", str(table), "--folds", "3", "--out", str(tmp_path / "model.npz")]
    environment = ENVIRONMENT | {"JAXSVM_CACHE": "off", "JAX_ENABLE_COMPILATION_CACHE": "0"}  # else it ends in 3 s
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(seconds)
    sent = time.time()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130 and time.time() - sent < LENIENT
    early = error == "jaxsvm: error: interrupted before there was a result.\n" and not out
    assert early or (seconds == 3.0 and out.split()[:2] == ["command", "path"])  # by then there may be a result


# --- the flag itself ---


def test_the_first_is_a_flag_and_the_second_raises():
    before = signal.getsignal(signal.SIGINT)
    with watching() as stop, watching() as inner:
        assert inner is stop
        signal.raise_signal(signal.SIGINT)
        assert stop.seen
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_one_that_python_would_swallow_comes_again(monkeypatch):
    """JAX's callback at a garbage collection is where it was printed and lost."""
    sent, code = threading.Event(), type("code", (), {"co_name": "_xla_gc_callback"})
    monkeypatch.setattr(os, "kill", lambda *_: sent.set())
    stop = Interruption()
    stop.arrived(signal.SIGINT, type("frame", (), {"f_code": code}))
    assert stop.came and sent.wait(5)


def test_a_machine_of_nu_stops_between_bursts(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), np.arange(60) % 2
    whole = NuSVC(nu=0.5, tol=1e-6).fit(x, y)
    monkeypatch.setattr(many, "MEASURED", dataclasses.replace(many.MEASURED, steps_of_a_piece=16))
    parts = NuSVC(nu=0.5, tol=1e-6).fit(x, y)
    np.testing.assert_allclose(parts.dual_coef_.sum(), whole.dual_coef_.sum(), atol=1e-6)
    assert parts.fit_status_ == 0 and parts.n_iter_ > 16
    program = many._solved
    monkeypatch.setattr(many, "_solved", lambda *given: (os.kill(os.getpid(), signal.SIGINT), program(*given))[1])
    with pytest.warns(ConvergenceWarning, match="INTERRUPTED"):
        assert NuSVC(nu=0.5, tol=1e-6).fit(x, y).n_iter_ == 16


@pytest.mark.thorough
@pytest.mark.parametrize("n", [60, 1100])
def test_an_estimators_solve_stops_between_pieces(monkeypatch, n):
    """On all samples at once and by working sets, in the thread of a pair of classes too; pieces find the same."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    y = (x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=n) > 0) * 1.0
    options = {"C": 10.0, "gamma": 0.5, "tol": 1e-6}
    whole = SVC(**options).fit(x, y)
    small = dataclasses.replace(many.MEASURED, steps_of_a_piece=16, sets_of_a_piece=1)
    monkeypatch.setattr(many, "MEASURED", small)
    pieces, calls, solved = SVC(**options).fit(x, y), [], many._solved
    assert pieces.fit_status_ == 0 and whole.certificate_.relative_gap <= 1e-6
    np.testing.assert_allclose(pieces.decision_function(x), whole.decision_function(x), atol=1e-2)

    def pressed(*arguments):
        calls.append(threading.current_thread())
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        while Interruption.last == -math.inf:  # until the main thread has handled it
            time.sleep(0.01)
        return solved(*arguments)

    monkeypatch.setattr(many, "_solved", pressed)
    folds = SVCPath(Cs=[10.0], gamma=0.5, tol=1e-6, cv=2)
    monkeypatch.setattr(folds, "_correct_by_pairs", lambda _, codes, *rest: np.ones((1, len(codes)), bool))
    folds.Cs_, folds.largest_gap_ = np.array([10.0]), np.zeros((2, 1))
    for model in (SVC(**options), SVR(**options, epsilon=0.01), folds):
        calls.clear()
        Interruption.last = -math.inf
        with pytest.warns(ConvergenceWarning, match="kept. 1 of 1 .* INTERRUPTED"):
            model.fit(x[: n // 2], y[: n // 2])
        assert np.isfinite(model.certificate_.relative_gap).all() and model.fit_status_ == 1 and len(calls) <= 4
    # A pair of classes that was not begun has nothing, and whatever scikit-learn would do next is not done.
    pipeline = make_pipeline(StandardScaler(), SVC(**options))
    for fit in (
        lambda: SVC(**options).fit(x, rng.integers(0, 4, n)),
        lambda: cross_val_score(SVC(**options), x, y, cv=4),
        lambda: pipeline.fit(x, y),
    ):
        calls.clear()
        Interruption.last = -math.inf
        with pytest.raises(KeyboardInterrupt), warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            fit()
        assert len(calls) <= 4 * workers()
    assert pipeline[-1].fit_status_ == 1 and pipeline.predict(x).shape == (n,)


@pytest.mark.parametrize("program", ["_chains", "joined", "_burst"])
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_folds_of_an_estimator_keep_their_scores(program, monkeypatch):
    """By chains, by values of carried ones, and of the squared hinge: a score is that of the whole run, or NaN."""
    x, y = interrupted.X[:80], interrupted.Y[:80]
    options = {
        "Cs": [0.1, 1.0, 10.0],
        "gamma": 0.5,
        "cv": 4,
        "loss": "squared_hinge" if program == "_burst" else "hinge",
    }
    if program == "joined":
        monkeypatch.setattr(small_loop, "MEASURED", dataclasses.replace(many.MEASURED, samples_of_a_small_problem=16))
    whole, part, calls = SVCPath(**options).fit(x, y), SVCPath(**options), []
    module = {"_burst": bursts, "_chains": small_loop, "joined": carried_chain}[program]
    real = getattr(module, program)

    def pressed(*arguments):
        calls.append(arguments)
        number, last = len(calls), 5 - 3 * (program == "_chains")
        if number == last:
            os.kill(os.getpid(), signal.SIGINT)
        while number >= last and Interruption.last == -math.inf:  # until the main thread has handled it
            time.sleep(0.01)
        return real(*arguments)

    pressed.ahead = getattr(real, "ahead", None)
    monkeypatch.setattr(module, program, pressed)
    Interruption.last = -math.inf
    with pytest.raises(KeyboardInterrupt, match="scores_ has .* of 12 scores of folds"):
        part.fit(x, y)
    known = np.isfinite(part.scores_)
    assert 1 < known.sum() < 12
    np.testing.assert_array_equal(part.scores_[known], whole.scores_[known])
    np.testing.assert_array_equal(part.largest_gap_ <= part.tol, known)
    assert part.C_ in part.Cs_[known.any(axis=0)]


def test_a_pass_ends_between_chunks():
    """No further chunk is read, and the descent keeps what it had before the pass."""
    read = []

    class Descent:
        going = True

        def advance(self):
            for part in until_halt(range(4)):
                read.append(part)
                if len(read) == 6:
                    Interruption.last = -math.inf
                    signal.raise_signal(signal.SIGINT)

    with watching() as stop:
        run_passes(Descent(), lambda: stop.seen, stop)
    assert read == [0, 1, 2, 3, 0, 1] and stop.came


def test_nobody_waits_for_a_pass_over_rows_in_memory(monkeypatch):
    """Nor for the compilation of its program."""
    rng, left = np.random.default_rng(0), threading.Event()
    x = rng.normal(size=(7000, 3))  # four tiles
    rows, real = designs.from_arrays(x, x[:, 0] > 0), arrays._total
    np.testing.assert_allclose(rows.total(_mass), x.sum(axis=0), rtol=1e-9)

    def pressed(*arguments):
        signal.raise_signal(signal.SIGINT)
        left.wait()
        return real(*arguments)

    monkeypatch.setattr(arrays, "_total", pressed)
    with watching(), pytest.raises(KeyboardInterrupt):
        rows.total(_mass)
    left.set()


def _mass(rows):
    return rows.weight @ rows.x


def test_a_handler_of_the_users_own_stays():
    calls = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        with watching() as stop:
            signal.raise_signal(signal.SIGINT)
        assert calls == [1]
        assert not stop.seen
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_one_of_their_own():
    found = []
    with watching() as stop:
        thread = threading.Thread(target=lambda: found.append(watching().__enter__()))
        thread.start()
        thread.join()
        assert found[0] is not stop
        with watching(stop) as given:
            assert given is stop
    found[0].drivers -= 1


def squared():
    return jaxsvm.svm_problem(interrupted.GRAM, interrupted.Y, 1.0)


CS = [0.1, 1.0, 10.0]
CALLS = {
    "fit": lambda **options: jaxsvm.fit(squared(), interrupted.PAIRS, **options),
    "chain": lambda **options: jaxsvm.solve_path(squared(), CS, solver=interrupted.PAIRS, **options),
    "path": lambda **options: jaxsvm.solve_path(squared(), CS, tol=1e-3, **options),
    "tune": lambda **options: jaxsvm.tune(RBF(0.5), interrupted.X, interrupted.Y, folds=2, steps=5, **options),
    "folds": lambda **options: jaxsvm.cross_validate(squared(), CS[:2], 2, solver=interrupted.PAIRS, **options),
    "classes": lambda **options: jaxsvm.fit_many(
        jaxsvm.one_versus_rest(lambda signs: jaxsvm.svm_problem(interrupted.GRAM, signs), (interrupted.Y > 0) * 1),
        interrupted.PAIRS,
        **options,
    ),
}


def press(monkeypatch, when):
    """SIGINT in front of those bursts of steps whose number, from 1, `when` holds of."""
    burst, calls = bursts._burst, []

    def pressed(*arguments):
        calls.append(arguments)
        if when(len(calls)):
            signal.raise_signal(signal.SIGINT)
        return burst(*arguments)

    pressed.ahead = burst.ahead
    monkeypatch.setattr(bursts, "_burst", pressed)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["fit", "chain", "path", "tune", "classes"])
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_a_callback_that_raises_ends_every_driver_alike(kind):
    calls = []

    def callback(*found):
        calls.append(found)
        raise KeyboardInterrupt

    result = CALLS[kind](callback=callback)
    assert len(calls) == 1
    if kind == "tune":
        assert result.stopped == "interrupted"
        assert len(result.history) == 1
        assert result.fit.status.name == "INTERRUPTED"  # that of all samples was not begun
        return
    statuses = np.ravel(result.status.name).tolist()
    if kind == "path":  # everything is found before the first callback
        assert set(statuses) == {"CONVERGED"}
    elif kind == "chain":
        gaps = np.asarray(result.certificate.relative_gap)
        assert statuses.count("CONVERGED") >= 1
        assert "INTERRUPTED" in statuses
        np.testing.assert_array_equal(np.asarray(statuses) == "CONVERGED", gaps <= interrupted.PAIRS.tol)
    else:  # machines that other threads had begun end as they are
        assert set(statuses) <= {"INTERRUPTED", "CONVERGED"}


@pytest.mark.thorough
def test_an_interruption_as_a_fit_ends_is_not_forgotten():
    """The fit is done, and its path is not: the next value is not begun (it was, in 2 of 8 trials)."""
    seen = []

    def callback(place, fit):
        seen.append(place)
        signal.raise_signal(signal.SIGINT)  # between two fits

    path = CALLS["chain"](callback=callback)
    assert seen == [0]
    assert path.status.name.tolist() == ["CONVERGED", "INTERRUPTED", "INTERRUPTED"]
    assert np.isinf(path.certificate.relative_gap[1:]).all()
    np.testing.assert_array_equal(path.alphas[1], path.alphas[0])  # from where to go on


def test_an_interruption_within_the_last_burst_is_not_forgotten(monkeypatch):
    certify = bursts._certify

    def pressed(*arguments):
        result = certify(*arguments)
        if int(result.status) == jaxsvm.Status.CONVERGED:
            signal.raise_signal(signal.SIGINT)
        return result

    pressed.ahead = certify.ahead
    monkeypatch.setattr(bursts, "_certify", pressed)
    path = CALLS["chain"]()
    assert path.status.name.tolist() == ["CONVERGED", "INTERRUPTED", "INTERRUPTED"]


@pytest.mark.parametrize("threads", [1, 2])
def test_folds_keep_what_was_certified(threads, monkeypatch):
    """Nothing was reached by every fold: the choice is that of the folds that have values, and says so."""
    monkeypatch.setattr(small_loop, "workers", lambda: threads)
    press(monkeypatch, lambda number: number == 12)
    problem, Cs = jaxsvm.hinge_problem, [0.1, 1.0, 1e3]
    with pytest.warns(jaxsvm.ConvergenceWarning):
        result = jaxsvm.cross_validate(problem(interrupted.GRAM, interrupted.Y), Cs, 3, solver=jaxsvm.SMO(tol=1e-8))
    folds = np.isfinite(result.scores).sum(axis=0)  # that have each value; of two threads one may be late
    assert folds[0] == folds.max() >= 1 and f"{folds[0]} of 3 folds" in result.note
    best = np.argmax(np.where(folds == folds[0], np.nansum(result.scores, axis=0), -1))
    assert Cs[int(best)] == result.C and set(result.status.name[2]) == {"INTERRUPTED"}
    if threads == 1:
        np.testing.assert_array_equal(result.mean, result.scores[0])
    np.testing.assert_array_equal(np.isfinite(result.scores), np.asarray(result.status.name) == "CONVERGED")


def test_what_has_no_half_answer_raises(monkeypatch):
    press(monkeypatch, lambda number: True)
    balls = jaxsvm.meb_problem(interrupted.GRAM)
    for call in (lambda: jaxsvm.C_grid(squared(), 4), lambda: jaxsvm.is_coreset(balls, [0, 1], 0.1), CALLS["tune"]):
        with pytest.raises(KeyboardInterrupt):
            call()


# --- what the user wants of it ---


def pressing(calls):
    """A callback that sends one SIGINT."""
    pressed = []

    def callback(*_):
        if not pressed:
            pressed.append(calls.append(1))
            signal.raise_signal(signal.SIGINT)

    return callback


@pytest.mark.parametrize("kind", ["fit", "chain", "path"])
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_the_second_within_two_seconds_ends_a_loop_of_calls(kind):
    """A loop of calls ends by two of them, though each meets one; long after the first another one is a first one."""
    calls = []
    CALLS[kind](callback=pressing(calls))
    with pytest.raises(KeyboardInterrupt):
        CALLS[kind](callback=pressing(calls))
    Interruption.last -= Interruption.seconds_to_repeat
    CALLS[kind](callback=pressing(calls))
    assert len(calls) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_callback_that_raises_is_no_first_of_two():
    def callback(*_):
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.warns(jaxsvm.ConvergenceWarning):
            CALLS["fit"](callback=callback)


@pytest.mark.parametrize("kind", ["fit", "chain", "folds", "classes"])
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_the_first_raises_where_that_is_asked_for(kind, monkeypatch):
    press(monkeypatch, lambda number: number == 1)
    with pytest.raises(KeyboardInterrupt):
        CALLS[kind](interrupt="raise")
    with pytest.raises(jaxsvm.InputError, match="interrupt is 'stop'"):
        CALLS[kind](interrupt="stop")


def test_a_time_limit_does_not_raise():
    with pytest.warns(jaxsvm.ConvergenceWarning, match="INTERRUPTED"):
        assert CALLS["fit"](max_seconds=0, interrupt="raise").status.name == "INTERRUPTED"


# --- what takes long is not waited for ---


def test_nobody_waits_for_what_is_left():
    """Once told so; else the answer counts, and an error is raised where it is waited for."""
    looks = []

    def slow():
        while len(looks) < 5:
            time.sleep(0.001)
        return np.ones(2)

    assert unless(lambda: looks.append(1) or len(looks) > 2, slow) is None
    looks.extend([1] * 5)
    np.testing.assert_array_equal(unless(lambda: False, slow), np.ones(2))
    with pytest.raises(ZeroDivisionError):
        unless(lambda: False, lambda: 1 / 0)


LOOSE = {
    "pairs": (squared, jaxsvm.FrankWolfe(tol=1e-9)),
    "sets": (squared, jaxsvm.WorkingSet(tol=1e-9, size=32, fresh=16)),
    "hinge": (
        lambda: jaxsvm.hinge_problem(interrupted.GRAM, interrupted.Y, 1.0, bias="free"),
        jaxsvm.SMO(tol=1e-9, check_every=20),
    ),
}


def no_time_for_products(monkeypatch):
    measured = dataclasses.replace(bursts.MEASURED, samples_of_a_long_product=1, samples_of_a_last_product=4)
    monkeypatch.setattr(bursts, "MEASURED", measured)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", LOOSE)
@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_a_large_fit_ends_with_what_its_carried_sums_prove(kind, x64, monkeypatch):
    """A true bracket without a product: as if each certificate would take too long for who was told to stop."""
    no_time_for_products(monkeypatch)
    calls = []
    monkeypatch.setattr(bursts, "_certified", lambda *given: calls.append(given) or given[2])
    with jax.enable_x64(x64):
        gram = jaxsvm.gram(RBF(0.5), interrupted.X.astype(np.float64 if x64 else np.float32))
        monkeypatch.setattr(interrupted, "GRAM", gram)
        make, solver = LOOSE[kind]
        problem = make()
        found = jaxsvm.fit(problem, solver, callback=lambda fit: True)
    assert found.status.name == "INTERRUPTED"
    assert len(calls) == 1  # for the callback's sake
    low, high = float(found.certificate.dual), float(found.certificate.primal)
    assert np.isfinite(found.certificate.relative_gap) and found.certificate.relative_gap > 0
    monkeypatch.undo()
    best = jaxsvm.fit(make(), tol=1e-8)
    assert low <= float(best.certificate.primal) * (1 + 1e-6)
    assert high >= float(best.certificate.dual) * (1 - 1e-6)


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_a_path_keeps_the_value_that_was_running(monkeypatch):
    """Interrupted in its first value, without time for a product, it has that value's best point, certified."""
    from jaxsvm.path import coarse_to_fine

    press(monkeypatch, lambda number: number == 2)
    no_time_for_products(monkeypatch)
    monkeypatch.setattr(coarse_to_fine, "MEASURED", bursts.MEASURED)
    problem = squared()
    path = jaxsvm.solve_path(problem, [1.0, 300.0], tol=1e-12)
    assert path.status.name.tolist() == ["INTERRUPTED"] * 2
    gaps = np.asarray(path.certificate.relative_gap)
    assert np.isfinite(gaps[0]) and gaps[0] > 0
    best = jaxsvm.fit(problem.at(1.0), tol=1e-9).certificate
    assert path.certificate.dual[0] <= best.primal and path.certificate.primal[0] >= best.dual
