"""One session: float64, a compilation cache that outlives it, and the published data sets where they are at hand."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import lowered
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"

# Only here: the library itself never touches a global flag. `JAXSVM_TEST_X64=0`: as users have it (`make test-core`).
jax.config.update("jax_enable_x64", os.environ.get("JAXSVM_TEST_X64", "1") == "1")
jax.config.update("jax_compilation_cache_dir", os.environ.get("JAXSVM_TEST_CACHE", str(ROOT / ".jax-cache")))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
os.environ["JAXSVM_CACHE"] = "off"  # of processes that tests begin too: nothing is written to a user's home

QUICK_TO_COMPILE = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
"""Flags of XLA with which it compiles for the CPU in a fraction of the time, by its older way of making kernels."""


def pytest_configure(config: pytest.Config) -> None:
    """The default suite, which runs each program for a moment, is compiled without most optimisations.

    Nearly all its time would be theirs. Where `XLA_FLAGS` is set, be it empty, and wherever slow tests are asked for,
    programs are compiled as users compile them: `XLA_FLAGS= python -m pytest`.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background: what tests Ctrl-C would never end
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.set_threshold(50_000, 20, 20)  # tracing makes many small objects and little garbage: a twentieth of the time
    if "XLA_FLAGS" in os.environ or "not slow" not in config.option.markexpr:
        return
    jax.config.update("jax_disable_most_optimizations", True)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # of the workers of xdist and of processes that tests begin
    os.environ["XLA_FLAGS"] = " ".join(filter(known, QUICK_TO_COMPILE))  # workers of xdist find it set


def known(flag: str) -> bool:
    begun = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.make_cpu_client()"]
    environment = os.environ | {"XLA_FLAGS": flag}
    return subprocess.run(begun, env=environment, capture_output=True, check=False).returncode == 0


MAPS = Path("/proc/self/maps")
MOST_MAPS = 48_000
"""Memory maps of a worker after which it drops its compiled programs, each of which holds several: Linux grants a
process 65,530 (vm.max_map_count), and XLA crashes without a word where one more is refused."""


@pytest.fixture(autouse=True, scope="session")
def products_in_full_precision() -> Iterator[None]:
    with lowered.watched(lowered.in_full_precision):
        yield


@pytest.fixture(autouse=True)
def no_interruption_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxsvm.loop.interruption.Interruption.last", -float("inf"))


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        from jaxsvm.runtime.programs import compiled_functions

        for program in compiled_functions():
            program.clear_cache()


@pytest.fixture(scope="session")
def shared() -> Callable[[str], dict[str, np.ndarray]]:
    """`shared(name)`: the arrays of ../shared/data/NAME.npz by key; the test is skipped where the file is absent."""

    def load(name: str) -> dict[str, np.ndarray]:
        path = SHARED / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"{path} is absent: the published data sets are not beside this checkout")
        with np.load(path) as stored:
            return dict(stored)

    return load
