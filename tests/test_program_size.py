"""Programs that users trace keep to their budgets: lines of StableHLO, which do not depend on the machine."""

import jax
import pytest
import traced

QUICK = ("fit, hinge, free bias", "fit, squared hinge", "fit, squared hinge, classic", "vmap over C, squared hinge")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in traced.ENTRIES]
)
def test_a_program_keeps_to_its_budget(name):
    entry = traced.ENTRIES[name]
    with jax.enable_x64(False):
        lines = traced.lines_of(traced.lowered(entry))
    assert lines <= entry.budget, f"{name}: {lines} lines of StableHLO, where {entry.budget} are its budget"
    assert lines >= 0.8 * entry.budget, f"{name}: {lines} lines: lower its budget in tests/traced.py"
