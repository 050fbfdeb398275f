"""Designs on eight devices, and on two processes of which one may die, against one device."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
START = """
import os, sys
import jax
import numpy as np
from jaxsvm import designs
from jaxsvm.kernels import RBF

rng = np.random.default_rng(0)
x = rng.normal(size=(17001, 3)).astype(np.float32)
y = np.where(x @ np.arange(3.0) + rng.normal(size=len(x)) > 0, 1, -1)
fit = lambda rows, **how: designs.fit(rows, [0.1, 10.0], bias="free", tol=1e-6, **how)
"""
EIGHT = """
mesh = jax.make_mesh((8,), ("rows",))
for many in (5, 17001):  # three devices without rows; uneven parts
    a, b = designs.from_arrays(x[:many], y[:many]), designs.from_arrays(x[:many], y[:many], mesh=mesh)
    np.testing.assert_allclose(fit(b).coef, fit(a).coef, atol=1e-9)
one, spread = (designs.fit(designs.nystroem(rows, RBF(0.5), 8)).coef for rows in (a, b))
np.testing.assert_allclose(spread, one, atol=1e-9)
"""
TWO = """
jax.config.update("jax_num_cpu_devices", 2)
process, port, cut, dies, limit = map(int, sys.argv[1:])
jax.distributed.initialize(f"localhost:{port}", 2, process)
own = slice(0, cut) if process == 0 else slice(cut, None)


def after(passes, gaps):
    if dies and process == 1 and passes >= 4:
        os._exit(9)
    return not dies and process == 1 and passes >= limit


rows = designs.from_arrays(x[own], y[own], mesh=jax.make_mesh((4,), ("rows",)), classes=(-1, 1))
found = fit(rows, checkpoint="state.npz", callback=after)
np.savez(f"found{process}.npz", coef=found.coef, passes=found.passes)
"""


def environment(**more):
    cache = os.environ.get("JAXSVM_TEST_CACHE", str(ROOT / ".jax-cache"))
    return os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": cache} | more


@pytest.mark.thorough
def test_eight_devices_give_the_answer_of_one(tmp_path):
    flags = environment(XLA_FLAGS="--xla_force_host_platform_device_count=8")
    subprocess.run([sys.executable, "-c", START + EIGHT], check=True, env=flags, cwd=tmp_path, timeout=600)


def _two(path, cut, dies=0, limit=1000):
    """Start two processes; return them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, "-c", START + TWO, str(process), str(port), str(cut), str(dies), str(limit)],
            env=environment(),
            cwd=path,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        for process in range(2)
    ]


def ended(processes):
    """Wait until all have ended well; return what they said."""
    said = [process.communicate(timeout=600)[1] for process in processes]
    for process, errors in zip(processes, said, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return said


def found_as_by_one(path):
    program = START + "np.savez('one.npz', coef=fit(designs.from_arrays(x, y)).coef)"
    subprocess.run([sys.executable, "-c", program], check=True, env=environment(), cwd=path, timeout=600)
    one, *found = (np.load(path / f"{name}.npz")["coef"] for name in ("one", "found0", "found1"))
    np.testing.assert_allclose(found, [one, one], atol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [5000, pytest.param(17001, marks=pytest.mark.slow)])  # uneven rows; all on one
def test_two_processes_give_the_answer_of_one(tmp_path, cut):
    ended(_two(tmp_path, cut))
    found_as_by_one(tmp_path)


@pytest.mark.thorough
def test_two_processes_stop_together(tmp_path):
    assert all("INTERRUPTED" in errors for errors in ended(_two(tmp_path, 5000, limit=4)))  # one of them decides
    passes = {int(np.load(tmp_path / f"found{process}.npz")["passes"]) for process in range(2)}
    assert len(passes) == 1 and min(passes) <= 6


@pytest.mark.slow
def test_a_process_that_dies_ends_the_other_and_both_go_on_from_the_checkpoint(tmp_path):
    first, second = _two(tmp_path, 5000, dies=1)
    second.communicate(timeout=600)
    _, errors = first.communicate(timeout=300)  # JAX's heartbeat, 100 s, or the sum that fails
    assert second.returncode == 9 and first.returncode not in (0, -signal.SIGALRM), errors[-3000:]
    assert (tmp_path / "state.npz").exists()
    ended(_two(tmp_path, 9000))  # the rows lie elsewhere
    found_as_by_one(tmp_path)
