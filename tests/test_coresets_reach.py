"""Coresets for kernels, and from the command line."""

import json

import jax
import numpy as np
import pytest

import jaxsvm
from jaxsvm import coresets
from jaxsvm.errors import InputError
from jaxsvm.kernels import RBF


def points(n, seed=0, d=2):
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.3, 1.0, -1.0)
    return rng.normal(size=(n, d)) + y[:, None], y


@pytest.mark.thorough
def test_a_kernel_coreset_trains_a_machine_nearly_as_good(tmp_path):
    x, y = points(500)
    kernel, C = RBF(0.5), 1.0
    small = coresets.kernel_coreset(kernel, x, y, C, 150, 0, rank=24, clusters=4)
    assert len(small) == 150 and small.x.shape[1] == 2
    fitted = jaxsvm.fit(small.problem(), jaxsvm.SMO(tol=1e-4))
    whole = jaxsvm.hinge_problem(jaxsvm.gram(kernel, x), y, C, bias="free")
    best = jaxsvm.fit(whole, jaxsvm.SMO(tol=1e-4))
    f = np.asarray(kernel.matrix(x, small.x)) @ np.asarray(fitted.dual_coef) + float(fitted.bias)
    beta = np.asarray(fitted.dual_coef)
    F = 0.5 * beta @ np.asarray(kernel.matrix(small.x, small.x)) @ beta + np.maximum(0, 1 - y * f).sum()
    assert F / float(best.certificate.primal) - 1 < 0.15
    np.testing.assert_allclose(small.fit().certificate.primal, fitted.certificate.primal, rtol=1e-3)
    for use in (small.solution, lambda: coresets.evaluate(small, (x, y))):
        with pytest.raises(InputError, match="a machine with RBF"):
            use()
    coresets.save_coreset(tmp_path / "k.npz", small)
    loaded = coresets.load_coreset(tmp_path / "k.npz")
    with pytest.raises(InputError, match="made for RBF"):
        loaded.fit()
    assert loaded.problem(kernel=kernel).y.shape == (150,)
    assert coresets.kernel_coreset(kernel, x.astype(object), y, C, 150, 0, rank=24, clusters=4).x.dtype == np.float64


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
