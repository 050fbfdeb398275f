"""Samples spread over the devices of a mesh: every solver agrees with one device, and a step moves few numbers."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

SCRIPT = Path(__file__).parent / "on_mesh.py"
DEVICES = "--xla_force_host_platform_device_count=8"


def run(name: str, devices: str = DEVICES) -> None:
    """Run a function of `on_mesh.py` as users have JAX, in 32 bits."""
    environment = os.environ | {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {devices}",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), name], env=environment, text=True, capture_output=True, check=False, timeout=600
    )
    assert done.returncode == 0 and "fine" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize(
    "name", ["rows", "entries", "steps", "lanes", pytest.param("more_rows", marks=pytest.mark.slow)]
)
def test_on_eight_devices(name):
    run(name)
