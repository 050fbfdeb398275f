"""A join as a design matrix: its rows, and the package's solvers on it, against the materialised join."""

import dataclasses

import numpy as np
import pytest
from random_joins import formed_rows
from test_relational import PATH, join_of, tables_of

import jaxsvm
from jaxsvm import coresets, relational
from jaxsvm.errors import InputError
from jaxsvm.relational.schema.assembly import prepared


@pytest.mark.parametrize("categories", [True, False])
def test_chunks_are_the_rows_of_the_materialised_join(monkeypatch, categories):
    monkeypatch.setattr("jaxsvm.relational.descent.rows.ENTRIES_OF_A_CHUNK", 300)
    tables = tables_of(PATH, n=12)
    if not categories:
        del tables["T1"]["kind"]
    join, found = relational.Join(tables, ("T1", "y")), []
    for x, y, weight, _ in relational.design(join).chunks():
        rows = np.asarray(x.rows(np.arange(len(y)))) if categories else x
        found.append(np.repeat(np.c_[rows, 2 * y - 1], weight.astype(int), axis=0))
    assert len(found) > 1
    whole, y, _ = formed_rows(join)
    assert sorted(map(tuple, np.concatenate(found))) == sorted(map(tuple, np.c_[whole, y]))


@pytest.mark.parametrize(
    ("solver", "loss"),
    [
        (jaxsvm.Newton(tol=1e-6), "squared_hinge"),
        pytest.param(jaxsvm.Newton(tol=1e-6, method="cg"), "squared_hinge", marks=pytest.mark.slow),
        pytest.param(jaxsvm.InteriorPoint(tol=1e-6), "hinge", marks=pytest.mark.slow),
    ],
)
def test_feature_space_solvers_take_a_join(solver, loss):
    join, lam = prepared(join_of(PATH, n=24), "max", True), 0.01
    design = relational.design(join)
    N = float(design.weight.sum())
    # F = mean loss + lam |w|^2; the package's squared hinge is C / 2 a sample.
    C = 1 / (2 * lam * N) * (2 if loss == "squared_hinge" else 1)
    make = jaxsvm.svm_problem if loss == "squared_hinge" else jaxsvm.hinge_problem
    problem = make(
        jaxsvm.gram(jaxsvm.kernels.Linear(), design.x), design.y, C, bias="none", sample_weight=design.weight
    )
    fit = jaxsvm.fit(problem, solver)
    jaxsvm.check(fit)
    other = relational.fit(join, lam, engine="formed", loss=loss, intercept=False, tol=1e-6)
    x, y, _ = formed_rows(join)

    def F(beta):
        slack = np.maximum(1 - y * (x @ beta), 0)
        return (slack**2 if loss == "squared_hinge" else slack).mean() + lam * beta @ beta

    w = design.x.T @ np.asarray(fit.dual_coef, float)
    np.testing.assert_allclose(F(w), F(other.beta), rtol=1e-5)
    np.testing.assert_allclose(w, other.beta, atol=1e-2)
    new = x[:5]  # a model's support are rows of the join, which are never padded
    np.testing.assert_allclose(jaxsvm.decision_function(jaxsvm.compact(fit, problem), new), new @ w, rtol=1e-5)


def test_joins_without_end_are_refused():
    rng = np.random.default_rng(0)
    tables = {name: {"k": np.zeros(20_000, int), f"x{name}": rng.normal(size=20_000)} for name in "ab"}
    tables["a"]["y"] = np.arange(20_000) % 2
    with pytest.raises(InputError, match="too many for vectors"):
        relational.design(relational.Join(tables, ("a", "y")))


def test_a_coreset_of_a_join_is_certified_on_its_rows(monkeypatch):
    """Fetched rows, and rows drawn of more, by the weights of merged rows; the join is never formed."""
    join = prepared(join_of(PATH, n=24), "max", True)
    x, y, _ = formed_rows(join)
    little = dataclasses.replace(coresets.rows.MEASURED, rows_held=32, rows_per_point=1, rows_for_centres=32)
    for held in (coresets.rows.MEASURED, little):
        monkeypatch.setattr(coresets.rows, "MEASURED", held)
        small = coresets.of_rows(relational.design(join), 1.0, 16)
        told, (w, b) = coresets.certify(small, relational.design(join)), small.solution()
        np.testing.assert_allclose(told.primal, 0.5 * w @ w + np.maximum(0, 1 - y * (x @ w + b)).sum(), rtol=1e-9)
        best = coresets.evaluate(small, (x, y)).optimum
        assert 0.9 * best < told.dual <= best * (1 + 1e-9) and small.info["U"] == pytest.approx(len(y))
