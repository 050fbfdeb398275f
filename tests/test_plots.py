"""The picture of a path: what it shows, what it marks, what it refuses."""

import dataclasses
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxsvm
from jaxsvm.plots import path_figure
from jaxsvm.result import Certificate, Status, StatusCode


@pytest.fixture(scope="module")
def path():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = np.where(x[:, 0] + 0.3 * rng.normal(size=40) > 0, 1.0, -1.0)
    return jaxsvm.solve_path(jaxsvm.svm_problem(jaxsvm.gram(jaxsvm.kernels.RBF(0.5), x), y), np.array([10.0, 0.1, 1.0]))


def spoilt(path, status, gap):
    """The same path with its first value ended otherwise."""
    gaps = path.certificate.relative_gap.at[0].set(gap)
    certificate = Certificate(path.certificate.primal, path.certificate.dual, gaps)
    code = StatusCode(jnp.asarray(path.status.code).at[0].set(int(status)))
    return dataclasses.replace(path, fits=dataclasses.replace(path.fits, certificate=certificate, status=code))


def marks(figure):
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_panels_show_the_path_in_the_order_of_C(path):
    figure = path_figure(path, scores=[0.9, 0.7, 0.8])
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "relative gap", "primal value", "support vectors", "test accuracy",
    ]  # fmt: skip
    assert all(axis.get_xscale() == "log" for axis in figure.axes)
    drawn = {axis.get_ylabel(): axis.lines[0].get_xydata() for axis in figure.axes}
    np.testing.assert_allclose(drawn["test accuracy"], [[0.1, 0.7], [1, 0.8], [10, 0.9]], rtol=1e-6)
    np.testing.assert_allclose(drawn["relative gap"][:, 1], np.asarray(path.certificate.relative_gap)[[1, 2, 0]])
    np.testing.assert_array_equal(drawn["support vectors"][:, 1], [len(path[i].support) for i in (1, 2, 0)])
    assert marks(figure) == []
    assert len(path_figure(path).axes) == 3


@pytest.mark.parametrize("gap", [0.3, np.inf, np.nan])
def test_what_did_not_converge_is_marked(path, gap, tmp_path):
    figure = path_figure(spoilt(path, Status.STALLED, gap))
    assert marks(figure) == ["STALLED"] * 3
    figure.savefig(tmp_path / "path.png")  # an infinite gap can be drawn too
    assert (tmp_path / "path.png").stat().st_size > 1000


def test_given_axes_are_drawn_on(path):
    figure = Figure()
    axes = figure.subplots(3, 1)
    assert path_figure(path, ax=axes) is figure
    assert all(axis.lines for axis in axes)


def test_refusals(path):
    with pytest.raises(jaxsvm.InputError, match="scores"):
        path_figure(path, scores=[1.0])
    with pytest.raises(jaxsvm.InputError, match="ax holds 1"):
        path_figure(path, ax=Figure().subplots())


def test_no_pyplot(path):
    loaded = "matplotlib.pyplot" in sys.modules
    path_figure(path)
    assert ("matplotlib.pyplot" in sys.modules) == loaded
