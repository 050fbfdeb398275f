"""Samples spread over the devices of a mesh: every solver agrees with one device, and a step moves few numbers."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

SCRIPT = Path(__file__).parent / "on_mesh.py"


def begun(*arguments: str, devices: int) -> subprocess.Popen[str]:
    """Begin a function of `on_mesh.py` on so many devices, as users have JAX: in 32 bits."""
    environment = os.environ | {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    "name",
    ["rows", "entries", "steps", pytest.param("values", marks=pytest.mark.thorough)]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("lanes", "more_rows", "rows_in_jit")],
)
def test_on_eight_devices(name):
    process = begun(name, devices=8)
    try:
        output, errors = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 0 and "fine" in output, errors[-3000:]


@pytest.mark.thorough
def test_of_two_processes_one_dies():
    """They agree with one device, and the other ends soon after, with an error that says so."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    first, second = (begun("process", number, port, devices=2) for number in "01")
    output, errors = second.communicate(timeout=600)
    died = time.monotonic()
    try:
        assert "fine" in output and second.returncode == 9, errors[-3000:]
        output, errors = first.communicate(timeout=120)
    finally:
        first.kill()
    assert "fine" in output and first.returncode != 0
    assert "another task died" in errors or "Connection" in errors, errors[-3000:]
    assert time.monotonic() - died < 60
