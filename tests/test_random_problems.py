"""The acceptance test: on 200 random problems pair steps end within tol, and their gap bounds the true error.

The truth is an independent float64 QP solution (`oracle.solve_svm`). Other solvers, whose certificates are asked for
alone, have `test_contract.py` and the ten thousand problems of `test_adversarial.py`.
"""

import cases
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jaxsvm
from jaxsvm.kernels import Precomputed

pytestmark = pytest.mark.filterwarnings("ignore::jaxsvm.ConvergenceWarning")
SMO = jaxsvm.FrankWolfe(variant="smo", tol=1e-4, max_steps=2_000_000)


def check_one(index, dtype):
    case = cases.random_problem(index)
    gram = jaxsvm.gram(Precomputed(), jnp.asarray(case.K, dtype))
    fit = jaxsvm.fit(jaxsvm.svm_problem(gram, case.y, case.C), SMO)
    alpha = np.asarray(fit.alpha, np.float64)
    alpha = alpha / alpha.sum()
    gap, status = float(fit.certificate.relative_gap), fit.status.name
    where = f"problem {index} ({case.name}, C = {case.C:.3g}), {dtype}: {status}, gap {gap:.3g}"
    # The true relative error of the point that came back, dual and primal; in float32 its float64 gap on the entries
    # as they are stored, which is what a certificate speaks of: an optimum of other entries is no bound for it.
    K = np.asarray(gram.K, np.float64)
    R = float(oracle.simplex_objective(K, case.y, case.C, alpha))
    primal = float(oracle.svm_primal(K, case.y, case.C, fit.dual_coef, float(fit.bias)))
    optimum = oracle.solve_svm(case.K, case.y, case.C) if dtype == jnp.float64 else None
    true_dual = R / optimum.R - 1 if optimum else 2 * R * primal - 1
    true_primal = primal / optimum.optimum - 1 if optimum else 2 * R * primal - 1
    slack = 1e-10 if optimum else 1e-7
    assert fit.alpha.dtype == dtype
    assert true_dual <= gap * (1 + 1e-6) + slack, f"{where}: true dual error {true_dual:.3g}"
    assert true_primal <= gap * (1 + 1e-6) + slack, f"{where}: true primal error {true_primal:.3g}"
    assert (status == "CONVERGED") == (gap <= SMO.tol), where
    assert status == "CONVERGED" or (dtype == jnp.float32 and status == "STALLED"), where


def test_gap_bounds_the_true_error_and_smo_ends():
    for index in range(0, 200, 33):
        check_one(index, jnp.float64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32], ids=["float64", "float32"])
def test_gap_bounds_the_true_error_on_all_200(dtype):
    for index in range(200):
        check_one(index, dtype)
