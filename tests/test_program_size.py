"""Programs that users trace keep to their budgets (lines of StableHLO), and lower for GPUs and TPUs."""

import inspect

import jax
import pytest
import traced

import jaxsvm

QUICK = ("fit, hinge, free bias", "fit, squared hinge", "fit, squared hinge, classic", "vmap over C, squared hinge")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in traced.ENTRIES]
)
def test_a_program_keeps_to_its_budget(name):
    entry = traced.ENTRIES[name]
    with jax.enable_x64(False):
        trace = traced.traced(entry)
        lines = traced.lines_of(trace.lower())
        lower_everywhere(trace)
    assert lines <= entry.budget, f"{name}: {lines} lines of StableHLO, where {entry.budget} are its budget"
    assert lines >= 0.8 * entry.budget, f"{name}: {lines} lines: lower its budget in tests/traced.py"


def lower_everywhere(trace):
    for platform in ("cuda", "tpu"):
        assert trace.lower(lowering_platforms=(platform,)).as_text().count("\n") > 10, platform


@pytest.mark.thorough
@pytest.mark.parametrize("name", traced.OTHERS)
def test_a_public_function_lowers_for_gpus_and_tpus(name):
    function, arguments = traced.OTHERS[name]
    with jax.enable_x64(False):
        lower_everywhere(jax.jit(function).trace(*arguments))


def test_every_public_function_is_lowered_or_runs_on_the_host():
    """Solvers are lowered by `test_contract.py`; other classes are results."""
    functions = {name for name in jaxsvm.__all__ if not inspect.isclass(getattr(jaxsvm, name))}
    around = {"polished", "sampled"}
    assert functions == (traced.OTHERS.keys() - {"Pegasos"}) | traced.FITTED | traced.ON_HOST | around
