"""Programs are let go where they are many, and only then; never under a driver that runs."""

import inspect
import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsvm
from jaxsvm.kernels import RBF
from jaxsvm.loop.bursts import _burst, _certify
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.round import Certifying, begin
from jaxsvm.runtime import programs


def solve(n):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 2))
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(0.5), x), np.where(x[:, 0] > 0, 1.0, -1.0), 1.0)
    return jaxsvm.fit(problem, jaxsvm.FrankWolfe(tol=1e-2))


@pytest.fixture(autouse=True)
def looked_for_again(monkeypatch):
    monkeypatch.setattr(programs._registry, "modules", 0)


@pytest.fixture
def crowded(monkeypatch):
    monkeypatch.setattr(programs, "PROGRAMS_KEPT", 0)


def test_too_many_programs_are_let_go(crowded):
    with watching():
        first = solve(20)
        assert _burst._cache_size() > 0
    assert _burst._cache_size() == 0
    np.testing.assert_array_equal(solve(20).alpha, first.alpha)  # compiled once more, the same answer


def test_programs_of_the_user_stay(crowded):
    traced = []

    @jax.jit
    def mine(x):
        traced.append(x.shape)
        return jnp.where(x > 0, jnp.sin(x), x).sum()

    mine(jnp.ones(7))
    with watching():
        solve(20)
    assert _burst._cache_size() == 0
    mine(jnp.ones(7))
    assert traced == [(7,)]


def test_few_programs_stay(monkeypatch):
    monkeypatch.setattr(programs, "PROGRAMS_KEPT", 10_000)
    solve(20)
    before = _burst._cache_size()
    assert before > 0
    solve(20)
    assert _burst._cache_size() == before


def test_nothing_is_cleared_while_another_thread_runs_a_driver(crowded):
    begun, end = threading.Event(), threading.Event()

    def other():
        with watching():
            begun.set()
            assert end.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(60)
    solve(20)
    assert _burst._cache_size() > 0
    end.set()
    thread.join()
    assert _burst._cache_size() == 0  # by whoever ended last


def test_every_program_of_the_library_is_known():
    assert jaxsvm.tune  # imports what is imported where it is first asked for
    names = {function.__name__ for function in programs.compiled_functions()}
    assert {"begin", "certified", "_run", "_values", "dense_values", "measured", "chains_traced"} <= names


@pytest.fixture
def as_shipped():
    return programs.Program(lambda x: jnp.sin(x) @ x, options=programs.QUICK)


def test_every_program_takes_its_arguments_by_name():
    kinds = inspect.Parameter
    for program in filter(lambda f: isinstance(f, programs.Program), programs.compiled_functions()):
        own = {p.kind for p in inspect.signature(program.function, follow_wrapped=False).parameters.values()}
        assert own <= {kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY} or kinds.VAR_KEYWORD in own, program


def test_a_program_is_compiled_quickly_on_a_cpu_and_gives_the_same(as_shipped):
    x = jnp.arange(5.0)
    assert float(as_shipped(x)) == float(jnp.sin(x) @ x)
    assert as_shipped._cache_size() == 1
    assert float(jax.jit(as_shipped)(x)) == pytest.approx(float(as_shipped(x)))
    as_shipped.clear_cache()
    assert as_shipped._cache_size() == 0


def test_of_several_threads_one_compiles():
    traced, both = [], threading.Barrier(4)

    def doubled(x):
        traced.append(time.sleep(0.2))
        return 2 * x

    program, found = programs.Program(doubled), []

    def call():
        both.wait()
        found.append(program(np.ones(3)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(traced) == 1 and np.sum(found) == 24


def test_options_that_the_compiler_does_not_know_are_left_out_and_no_others():
    options = {"xla_cpu_of_another_day": False, "xla_backend_optimization_level": 0}
    known = {name for name, value in options.items() if programs._is_known(name, value)}
    assert known == {"xla_backend_optimization_level"}
    x = jnp.arange(5.0)
    ahead, program = (programs.Program(lambda x: jnp.cos(x) @ x, options=options) for _ in range(2))
    ahead.ahead(x)()  # in a thread nobody hears of an error
    assert [len(one._executables) for one in (ahead, program)] == [1, 0]
    for one in (ahead, program):
        assert float(one(x)) == pytest.approx(float(jnp.cos(x) @ x))
        assert one._cache_size() == 1


def test_an_error_of_a_program_is_the_callers(as_shipped):
    with pytest.raises(TypeError, match="dot_general"):
        as_shipped(jnp.ones((2, 3)))
    assert float(as_shipped(jnp.ones(3))) == pytest.approx(3 * float(jnp.sin(1.0)))


def test_ctrl_c_within_a_compilation_raises_after_it():
    """Raised within, it left the compiler in a state that crashed the exit of the process."""
    seen = []

    def double(x):
        os.kill(os.getpid(), signal.SIGINT)
        seen.append(x)  # not reached if the signal raised at once
        return 2 * x

    program = programs.Program(double)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            program(np.float32(1))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert len(seen) == 1 and float(program(np.float32(1))) == 2  # compiled by then
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_certificate_does_not_copy_kernel_rows():
    """Nor anything else of a state that stays: it is no result of the program, since XLA copies what it returns."""
    x = np.random.default_rng(0).normal(size=(5000, 2)).astype(np.float32)
    problem = jaxsvm.hinge_problem(jaxsvm.gram(RBF(0.5), x), np.where(x[:, 0] > 0, 1, -1), 1.0, bias="free")
    given = problem, jaxsvm.WorkingSet(), jax.random.key(0)
    progress = jax.eval_shape(begin, *given)
    returned = jax.eval_shape(lambda *given: _certify.function(*given, Certifying()), *given[:2], progress)
    rows, kept = (jax.tree.leaves(state) for state in (progress.state.cache, returned.state.cache))
    assert max(leaf.size for leaf in rows) > 1_000_000
    assert not kept
