"""One session: float64, a compilation cache that outlives it, and the published data sets where they are at hand."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"

# Only here: the library itself never touches a global flag.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", os.environ.get("JAXSVM_TEST_CACHE", str(ROOT / ".jax-cache")))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


MAPS = Path("/proc/self/maps")
MOST_MAPS = 30_000
"""Memory maps of a worker after which it drops its compiled programs, each of which holds several: Linux grants a
process 65,530 (vm.max_map_count), and XLA crashes without a word where one more is refused."""


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Compiled programs never crowd a worker out of memory maps; the cache on disk gives them back."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


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
