"""Programs of one process are loaded by the next one, and never where they would be wrong."""

import errno
import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaxsvm
from jaxsvm.gram.operators import _squares
from jaxsvm.kernels import RBF, Kernel
from jaxsvm.kernels.distances import _furthest, less
from jaxsvm.loop.round import Certifying
from jaxsvm.problems.arguments import _usable
from jaxsvm.runtime import executables, programs
from jaxsvm.runtime.executables import Store, UnknownCodeError, described

SCRIPT = """
import collections, json, jax, numpy as np
from jax import monitoring
compiled = []
monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **named: compiled.append(event) if "backend_compile" in event else None
)
import jaxsvm
x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
gram = jaxsvm.gram(jaxsvm.kernels.RBF(0.5), x)
fit = jaxsvm.fit(jaxsvm.hinge_problem(gram, np.where(x[:, 0] * x[:, 1] > 0, 1, -1), 3.0, bias="free"))
jax.jit(lambda a: a * 2)(1.0)  # the user's own
from jaxsvm.numerics.hinge_program import _solved
from jaxsvm.numerics.measured import MEASURED
with jax.enable_x64(True):  # by LAPACK
    solved = _solved(2 * np.eye(MEASURED.lapack_size + 1), np.ones(MEASURED.lapack_size + 1))
assert np.allclose(solved, 0.5)
found = [fit.status.name, np.asarray(fit.alpha).tolist(), float(fit.certificate.relative_gap)]
print(json.dumps([len(compiled), found, jax.config.jax_compilation_cache_dir]))
"""


def started(cache, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "JAXSVM_", "XDG_"))}
    kept |= {
        "PYTHONPATH": str(Path(jaxsvm.__file__).parents[1]),
        "JAXSVM_CACHE": str(cache),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    } | environment
    return subprocess.Popen([sys.executable, "-c", SCRIPT], env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process):
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0 and not errors, errors.decode()
    return json.loads(out)


def test_the_next_process_compiles_nothing_of_ours_and_a_damaged_file_is_replaced(tmp_path):
    first, second = started(tmp_path), started(tmp_path)  # on an empty directory, both at once
    (many, found, _), (more, same, of_jax) = ended(first), ended(second)  # each may find what the other stored
    assert found == same and found[0] == "CONVERGED" and of_jax is None
    files = list(tmp_path.rglob("*.program"))
    assert files and not list(tmp_path.rglob(".jaxsvm-*"))
    few, again, _ = ended(started(tmp_path))
    assert again == found and 2 * few + 2 < many + more, (few, many, more)
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    _, again, _ = ended(started(tmp_path))
    assert again == found and min(file.stat().st_size for file in files) > 100


def test_a_directory_that_cannot_be_made_costs_time_only(tmp_path):
    (tmp_path / "file").write_text("")
    assert ended(started(tmp_path / "file" / "below"))[1][0] == "CONVERGED"


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setattr(executables, "_stores", [Store(tmp_path)])
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    _furthest.clear_cache()
    yield lambda: sorted(tmp_path.rglob("*.program"))
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()
    _furthest.clear_cache()


def furthest(kernel, n=7):
    _furthest.clear_cache()
    return float(_furthest(kernel, np.arange(2.0 * n, dtype=np.float32).reshape(n, 2)))


def test_a_file_holds_for_its_shapes_settings_and_circumstances_only(stored, monkeypatch):
    value = furthest(RBF(0.5))
    assert len(stored()) == 1
    assert furthest(RBF(0.5)) == value and len(stored()) == 1
    assert furthest(RBF(2.0)) == 2 * value and len(stored()) == 1  # a width is an argument
    furthest(RBF(0.5), 8)
    assert len(stored()) == 2
    for many, setting in enumerate((jax.default_matmul_precision("float32"), jax.default_prng_impl("rbg")), 3):
        with setting:
            assert furthest(RBF(0.5)) == value
        assert len(stored()) == many
    monkeypatch.setattr(executables, "_circumstances", lambda: "of-another-processor")
    loads = []
    monkeypatch.setattr(executables.serialize_executable, "deserialize_and_load", lambda *found: loads.append(found))
    assert furthest(RBF(0.5)) == value and len(stored()) == 5 and not loads


def test_nothing_more_is_written_on_a_full_disk(stored, monkeypatch):
    def full(write, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(executables, "write_whole", full)
    assert furthest(RBF(0.5)) > 0 and not stored()
    assert not executables.store().writable


@pytest.mark.parametrize(
    "context",
    [
        lambda: jax.debug_nans(True),
        jax.disable_jit,
        lambda: jax.default_device(jax.devices()[0]),
        lambda: jax.set_mesh(jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))),
    ],
    ids=["nans", "no jit", "device", "mesh"],
)
def test_what_jax_has_to_decide_is_left_to_it(stored, context):
    value = furthest(RBF(0.5))
    with context():
        assert furthest(RBF(0.5)) == value
    assert len(stored()) == 1
    x = np.arange(14.0, dtype=np.float32).reshape(7, 2)
    mesh = jax.NamedSharding(jax.make_mesh((1,), ("i",)), jax.P("i"))
    assert float(_furthest(RBF(0.5), jax.device_put(x, mesh))) == value
    for transformed in (jax.jit(_furthest), jax.jit(lambda kernel, x: jax.vmap(_furthest, (None, 0))(kernel, x[None]))):
        assert np.ravel(transformed(RBF(0.5), x)) == pytest.approx(value)
    assert len(stored()) == 1


def test_threads_that_are_first_at_once_agree(stored):
    _furthest.clear_cache()
    x = np.arange(18.0, dtype=np.float32).reshape(9, 2)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: float(_furthest(RBF(0.5), x)), range(16)))) == 1
    assert len(stored()) == 1


def test_a_program_that_another_thread_compiled_is_found_by_the_settings_of_the_caller(stored):
    x = np.arange(14.0).reshape(7, 2)
    with jax.enable_x64(not jax.config.jax_enable_x64):
        programs.compiled_ahead(lambda: [(_furthest, RBF(0.5), x)], x, object())()
        assert len(stored()) == 1
        _furthest.clear_cache()
        assert _furthest(RBF(0.5), x).dtype == jnp.zeros(()).dtype and len(stored()) == 1
    assert _furthest(RBF(0.5), x).dtype == jnp.zeros(()).dtype and len(stored()) == 2


def test_a_loaded_program_takes_donated_and_weakly_typed_arguments_as_a_compiled_one(stored):
    for _ in range(2):  # compiled, and loaded
        program = programs.Program(less, donated="x")
        x = jnp.arange(4.0).reshape(2, 2)
        assert program(x, np.ones(2, x.dtype)).tolist() == [[-1, 0], [1, 2]] and x.is_deleted()
        weak = programs.Program(_usable.function)
        assert all(bool(weak(value)) for value in (np.ones(2), np.ones(2, np.int8), np.ones(2, bool)))
        types = [programs.Program(_squares.function)(value).dtype for value in (jnp.ones((1, 1), "bfloat16"),)]
        assert types == ["bfloat16"]
    assert len(stored()) == 5


def test_files_that_cannot_be_written_are_read(stored, monkeypatch):
    def refused(*_, **__):
        raise PermissionError

    value = furthest(RBF(0.5))
    loads, load = [], executables.serialize_executable.deserialize_and_load
    monkeypatch.setattr(executables.os, "utime", refused)
    monkeypatch.setattr(executables, "write_whole", refused)
    monkeypatch.setattr(
        executables.serialize_executable, "deserialize_and_load", lambda *a, **b: loads.append(a) or load(*a, **b)
    )
    furthest(RBF(0.5), 8)  # is not stored
    assert furthest(RBF(0.5)) == value and len(loads) == len(stored()) == 1


def test_a_user_without_a_home_has_no_store(monkeypatch):
    monkeypatch.setattr(executables, "_stores", [])
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: exec("raise RuntimeError"))
    assert jaxsvm.keep_programs() is None and executables.store().file() is None


def test_another_source_is_another_directory(monkeypatch, tmp_path):
    (tmp_path / "runtime").mkdir()
    monkeypatch.setattr(executables, "__file__", str(tmp_path / "runtime" / "executables.py"))
    found = set()
    for text in ("a = 1", "a = 2", "a = 1"):
        (tmp_path / "a.py").write_text(text)
        os.utime(tmp_path / "a.py", (0, 0))
        found.add(executables._circumstances.__wrapped__())
    assert len(found) == 2


class Users(Kernel):
    """A kernel whose code may change between two processes."""

    def __call__(self, x, z):
        return x @ z


def test_code_of_a_user_is_not_stored(stored):
    def closure():
        return stored

    for value in (Users, Users(), [closure], functools.partial(described, closure), jax.tree.structure({"a": closure})):
        if not isinstance(value, jax.tree_util.PyTreeDef):
            with pytest.raises(UnknownCodeError):
                described(value)
    assert Store(Path()).file(Users) is None


def test_descriptions_tell_values_apart():
    values = [
        None, 0, 0.0, -0.0, False, "0", (), [], (0,), ((), 0), {"a": 0}, {"a": 1}, jnp.dtype("float32"), np.float32,
        jaxsvm.Status.CONVERGED, jaxsvm.Status.STALLED, Certifying(), Certifying(may_correct=False), RBF,
        functools.partial(described, value=0), functools.partial(described, value=1), jax.devices()[0],
        *(jax.tree.structure(tree) for tree in (None, 0, (0,), [0], (0, 0), ((0,), 0), {"a": 0}, RBF(1.0))),
    ]  # fmt: skip
    texts = [described(value) for value in values]
    assert len(set(texts)) == len(texts)
    assert described(jax.tree.structure(RBF(1.0))) == described(jax.tree.structure(RBF(2.0)))


@pytest.mark.parametrize(
    ("environment", "of_jax", "expected"),
    [
        ({"XDG_CACHE_HOME": "{}"}, None, "{}/jaxsvm"),
        ({"XDG_CACHE_HOME": "{}", "JAXSVM_CACHE": "on"}, "/users", "{}/jaxsvm"),
        ({"JAXSVM_CACHE": "{}/mine"}, None, "{}/mine"),
        ({"JAXSVM_CACHE": "off"}, None, None),
        ({}, "/users", None),
    ],
)
def test_where_programs_are_stored(monkeypatch, tmp_path, environment, of_jax, expected):
    monkeypatch.setattr(executables, "_stores", [])
    for name in ("JAXSVM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", of_jax)
    try:
        directory = executables.store().directory
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert directory == (None if expected is None else Path(expected.format(tmp_path)))


def test_programs_on_disk_are_bounded(tmp_path):
    (tmp_path / "jaxlib-of").mkdir()
    for age in range(10):
        path = tmp_path / "jaxlib-of" / f"{age}.program"
        path.write_bytes(bytes(100))
        os.utime(path, (1000 - age, 1000 - age))
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "other").write_bytes(bytes(1000))
    executables._delete_unused(tmp_path, 500)
    left = sorted(path.name for path in (tmp_path / "jaxlib-of").iterdir())
    assert left == ["0.program", "1.program", "2.program"]  # the newest three quarters of the bound
    assert (tmp_path / "users" / "other").exists()
