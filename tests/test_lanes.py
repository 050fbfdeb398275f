"""Many small problems side by side, x64 off: programs return, and call no LAPACK, which may wait for itself."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from lanes import PROGRAMS, D, N

OFTEN = ["hinge"]
RARER = [pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS if name not in OFTEN]


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*OFTEN, *RARER])
def test_a_thousand_lanes_return(name):
    """Three batched calls of LAPACK in one program never did (jax 0.10): hence a process that can be ended."""
    here = pathlib.Path(__file__).parent
    environment = os.environ | {"JAX_ENABLE_X64": "0", "PYTHONPATH": os.pathsep.join([str(here.parent), *sys.path])}
    command = [sys.executable, str(here / "lanes.py"), name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "returned in" in done.stdout


@pytest.mark.parametrize("name", [*OFTEN, *RARER])
def test_lanes_lower_to_no_lapack(name):
    with jax.enable_x64(False):
        lowered = jax.jit(PROGRAMS[name]).lower(jax.ShapeDtypeStruct((2, N, D), jnp.float32)).as_text()
    assert "lapack" not in lowered
