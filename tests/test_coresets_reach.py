"""Coresets for kernels, and from the command line."""

import json

import jax
import numpy as np
import pytest

import jaxsvm
from jaxsvm import coresets
from jaxsvm.errors import DataError
from jaxsvm.kernels import RBF


def points(n, seed=0, d=2):
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.3, 1.0, -1.0)
    return rng.normal(size=(n, d)) + y[:, None], y


@pytest.mark.thorough
def test_a_coreset_of_a_kernels_features_trains_a_machine_nearly_as_good():
    x, y = points(500)
    kernel, C = RBF(0.5), 1.0
    features = np.asarray(jaxsvm.gram(kernel, x, rank=24, landmarks="random", key=jax.random.key(1)).design)
    small = coresets.coreset(features, y, C, 150, 0, clusters=4)
    kept = x[small.info["index"]]
    problem = jaxsvm.hinge_problem(jaxsvm.gram(kernel, kept), small.y, small.C, bias="free", sample_weight=small.weight)
    fitted = jaxsvm.fit(problem, jaxsvm.SMO(tol=1e-4))
    whole = jaxsvm.hinge_problem(jaxsvm.gram(kernel, x), y, C, bias="free")
    best = jaxsvm.fit(whole, jaxsvm.SMO(tol=1e-4))
    beta = np.asarray(fitted.dual_coef)
    f = np.asarray(kernel.matrix(x, kept)) @ beta + float(fitted.bias)
    F = 0.5 * beta @ np.asarray(kernel.matrix(kept, kept)) @ beta + np.maximum(0, 1 - y * f).sum()
    assert F / float(best.certificate.primal) - 1 < 0.15


def test_a_file_of_a_coreset_with_a_kernel_is_refused(tmp_path):
    """Older versions wrote points of a kernel machine: a linear one would be trained on them."""
    old = coresets.Coreset(np.ones((2, 2)), np.array([1.0, -1.0]), np.ones(2), {"C": 1.0, "kernel": "RBF(gamma=0.5)"})
    coresets.save_coreset(tmp_path / "k.npz", old)
    with pytest.raises(DataError, match="by an older version"):
        coresets.load_coreset(tmp_path / "k.npz")


def test_the_command_writes_a_coreset(tmp_path):
    from typer.testing import CliRunner

    from jaxsvm import cli

    x, y = points(300)
    lines = [f"{a!r},{b!r},{int(s)}" for (a, b), s in zip(x.tolist(), y, strict=True)]
    (tmp_path / "bad.csv").write_text("\n".join([*lines[:4], "1,2", *lines[5:]]) + "\n")
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
    arguments = ["coreset", "--size", "40", "--lambda", "0.5", "--json"]
    stopped = CliRunner().invoke(cli.app, [*arguments, str(tmp_path / "bad.csv")])
    assert stopped.exit_code == 2 and "line 5" in stopped.stderr
    done = CliRunner().invoke(cli.app, [*arguments, str(tmp_path / "data.csv"), "--out", str(tmp_path / "small.npz")])
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["n"] == 300 and report["points"] <= 300
    small = coresets.load_coreset(tmp_path / "small.npz")
    assert small.C == 0.5 and len(small) == report["points"]
    assert jax.numpy.zeros(()).dtype == jax.numpy.float64  # the flag is the user's
