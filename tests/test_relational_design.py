"""A join as a design matrix: its products, and the package's solvers on it, against the materialised join."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_relational import PATH, join_of

import jaxsvm
from jaxsvm import relational
from jaxsvm.errors import InputError
from jaxsvm.relational.schema.join import prepared


def test_products_are_those_of_the_materialised_join():
    design = relational.design(join_of(PATH, n=12))
    x = np.asarray(design.x.rows(jnp.arange(len(design.y))))
    whole, y, _ = join_of(PATH, n=12).materialise()
    copies = design.weight.astype(int)
    assert sorted(map(tuple, np.repeat(np.c_[x, design.y], copies, axis=0))) == sorted(map(tuple, np.c_[whole, y]))
    rng = np.random.default_rng(0)
    w, v = rng.normal(size=(x.shape[1], 2)), rng.normal(size=(len(x), 2))
    for k in (slice(None), 0):
        np.testing.assert_allclose(design.x.dot(jnp.asarray(w[:, k])), x @ w[:, k], atol=1e-12)
        np.testing.assert_allclose(design.x.transposed_dot(jnp.asarray(v[:, k])), x.T @ v[:, k], atol=1e-12)
    np.testing.assert_array_equal(design.x.squared().rows(jnp.arange(3)), x[:3] ** 2)
    some = np.array([5, 2])
    np.testing.assert_array_equal(design.x.take(some).rows(jnp.arange(2)), x[some])


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
    problem = make(design.gram(), design.y, C, bias="none", sample_weight=design.weight)
    fit = jaxsvm.fit(problem, solver)
    jaxsvm.check(fit)
    other = relational.fit(join, lam, engine="rows", loss=loss, intercept=False, tol=1e-6)
    x, y, _ = join.materialise()

    def F(beta):
        slack = np.maximum(1 - y * (x @ beta), 0)
        return (slack**2 if loss == "squared_hinge" else slack).mean() + lam * beta @ beta

    w = design.coefficients(fit)
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
