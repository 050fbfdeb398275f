"""Transformations of solvers: each hands the whole contract on; every nesting works, or is refused when it is made."""

import dataclasses
import itertools

import jax
import pytest
from samples import N
from test_contract import assert_brackets, optimum, problem

import jaxsvm
from jaxsvm.solvers.around.on_simplex import Polished, Sampled
from jaxsvm.solvers.around.wrapper import Wrapper
from jaxsvm.solvers.contract import SimplexSolver, Solver, Traits

SOLVERS = {
    "FrankWolfe": jaxsvm.FrankWolfe(variant="away", tol=1e-2),
    "CoreVectorMachine": jaxsvm.CoreVectorMachine(tol=1e-2),
    "Newton": jaxsvm.Newton(tol=1e-6),
    "SMO": jaxsvm.SMO(tol=1e-6),
    "WorkingSet": jaxsvm.WorkingSet(tol=1e-6, size=16, fresh=8),
    "InteriorPoint": jaxsvm.InteriorPoint(tol=1e-6),
    "SDCA": jaxsvm.SDCA(tol=1e-4),
    "Perceptron": jaxsvm.Perceptron(5 * N),
    "Pegasos": jaxsvm.Pegasos(steps=400, batch=4),
    "BallSGD": jaxsvm.BallSGD(5.0, steps=400, batch=4),
    "StochasticBatchPerceptron": jaxsvm.StochasticBatchPerceptron(steps=400, batch=8),
}
MAKERS = {"sampled": jaxsvm.sampled, "polished": jaxsvm.polished}
WRAPPERS = {"sampled": Sampled, "polished": Polished}


def made(names):
    *outer, solver = names
    made = SOLVERS[solver]
    for name in reversed(outer):
        made = MAKERS[name](made)
    return made


def allowed(names):
    *outer, solver = names
    layers = [WRAPPERS[name].layer for name in outer]
    if layers != sorted(set(layers), reverse=True):
        return False
    return solver in ("FrankWolfe", "CoreVectorMachine")


NESTINGS = [
    (*outer, solver) for depth in (1, 2) for outer in itertools.product(MAKERS, repeat=depth) for solver in SOLVERS
]
QUICK = ("polished", "sampled", "FrankWolfe")


def members_of(contract):
    names = set(vars(contract)) | set(contract.__annotations__) - {"bit"}
    return sorted(name for name in names if not name.startswith("_"))


@pytest.mark.parametrize("name", members_of(Solver))
def test_a_wrapper_names_every_member_of_the_contract(name):
    assert name in vars(Wrapper)
    assert not hasattr(Wrapper, "__getattr__")


class Told(SimplexSolver):
    """A solver of nothing, whose every member is another than the default, and whose methods say what was called."""

    solves, stop, unroll, patience = ("box", "squared hinge"), "paper", 7, 11
    traits = Traits(pads=True, large_state=True, takes_start=False, knows_origin=True)
    final_check = "none"
    tol, max_steps, check_every, refresh_every = 0.125, 17, 3, 5

    def carries_weights(self, problem):
        return True

    def stores(self, problem):
        return False


OWN = {"sampled": {"final_check": "full", "refresh_every": 2**30}, "polished": {}}
"""What each wrapper decides itself."""


@pytest.mark.parametrize("name", MAKERS)
def test_settings_are_the_inner_solvers_but_for_what_a_wrapper_decides(name):
    wrapper = MAKERS[name](Told())
    for member in ("solves", "stop", "unroll", "patience", "final_check", "tol", "max_steps", "check_every",
                   "refresh_every", "rows"):  # fmt: skip
        assert getattr(wrapper, member) == OWN[name].get(member, getattr(Told(), member)), member
    assert wrapper.carries_weights(None) and not wrapper.stores(None)
    assert wrapper.traits == dataclasses.replace(Told.traits, pads=name != "sampled")


@pytest.mark.parametrize("names", [names for names in NESTINGS if not allowed(names)], ids="-".join)
def test_what_cannot_nest_is_refused_when_it_is_made(names):
    with pytest.raises(jaxsvm.InputError) as refused:
        made(names)
    message = str(refused.value)
    assert any(f"{name}()" in message for name in names[:-1])
    assert names[-1] in message


@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, marks=() if names == QUICK else pytest.mark.slow, id="-".join(names))
        for names in NESTINGS
        if allowed(names)
    ],
)
def test_every_other_nesting_is_certified(names):
    kind = "svm" if "squared hinge" in SOLVERS[names[-1]].solves else "hinge"
    fit = jaxsvm.check(jaxsvm.fit(problem(kind), made(names)))
    assert float(fit.certificate.relative_gap) <= SOLVERS[names[-1]].tol
    assert_brackets(fit.certificate, optimum(kind))
    assert int(fit.steps) > 0 and fit.kernel_evaluations > 0


@pytest.mark.parametrize("variant", ["classic", pytest.param("smo", marks=pytest.mark.slow)])
def test_a_buffer_that_cannot_hold_the_support_ends_as_full(variant):
    """The warning says what to do, and does not speak of the dtype."""
    solver = jaxsvm.sampled(jaxsvm.FrankWolfe(variant=variant, tol=1e-2, max_steps=20_000), capacity=16)
    with pytest.warns(jaxsvm.ConvergenceWarning, match="FULL.*capacity") as told:
        fit = jaxsvm.fit(problem("svm"), solver)
    assert "float64" not in str(told[0].message)
    assert fit.status.name == "FULL" and int(fit.steps) < 20_000
    assert len(fit.support) <= 16 < len(jaxsvm.fit(problem("svm"), jaxsvm.FrankWolfe(tol=1e-2)).support)
    assert_brackets(fit.certificate, optimum("svm"))
    with pytest.raises(jaxsvm.ConvergenceError, match="capacity"):
        jaxsvm.check(fit)


def test_a_full_buffer_makes_room_for_better_samples():
    """Classic steps leave every sample a little weight that they met on the way: it gives way."""
    held = len(jaxsvm.fit(problem("svm"), jaxsvm.FrankWolfe(tol=1e-6)).support)
    solver = jaxsvm.sampled(jaxsvm.FrankWolfe(variant="classic", tol=5e-2), capacity=held + 2)
    assert held + 2 < N
    jaxsvm.check(jaxsvm.fit(problem("svm"), solver))


def test_a_buffer_without_a_cap_grows():
    solver = dataclasses.replace(jaxsvm.sampled(jaxsvm.FrankWolfe(variant="classic", tol=5e-2)), places=16)
    fit = jaxsvm.check(jaxsvm.fit(problem("svm"), solver))
    assert len(fit.support) > 16
    assert_brackets(fit.certificate, optimum("svm"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
def test_a_buffer_grows_within_the_step_cap_and_not_under_tracing():
    solver = dataclasses.replace(jaxsvm.sampled(jaxsvm.FrankWolfe(variant="away", tol=1e-9, max_steps=300)), places=8)
    assert int(jaxsvm.fit(problem("svm"), solver).steps) == 300
    solver = jaxsvm.sampled(jaxsvm.FrankWolfe(variant="away", tol=1e-2), capacity=16)
    assert jax.jit(lambda problem: jaxsvm.fit(problem, solver))(problem("svm")).status.name == "FULL"
