"""Pictures: what they show, what they mark, what they refuse."""

import dataclasses
import pickle
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxsvm
from jaxsvm import plots
from jaxsvm.plots import path_figure
from jaxsvm.results.fit import Certificate, Status, StatusCode


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = np.where(x[:, 0] + 0.3 * rng.normal(size=40) > 0, 1.0, -1.0)
    return jaxsvm.svm_problem(jaxsvm.gram(jaxsvm.kernels.RBF(0.5), x), y)


@pytest.fixture(scope="module")
def path(problem):
    return jaxsvm.solve_path(problem, np.array([10.0, 0.1, 1.0]))


def spoilt(path, status, gap):
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
    assert all(axis.lines and axis.get_xlabel() == "C" for axis in axes)  # they may stand side by side


def test_refusals(path):
    with pytest.raises(jaxsvm.InputError, match="scores"):
        path_figure(path, scores=[1.0])
    with pytest.raises(jaxsvm.InputError, match="ax holds 1"):
        path_figure(path, ax=Figure().subplots())
    for draw, wanted in ((plots.path_scores, "cross_validate"), (plots.width_scores, "gammas")):
        with pytest.raises(jaxsvm.InputError, match=f"a Path: .*{wanted}"):
            draw(path)
    with pytest.raises(jaxsvm.InputError, match="a Fit: .*History"):
        plots.bracket(path[0])


def test_margin_and_support_of_a_path(path, problem):
    axes = plots.path_margin(path, problem)
    K = np.asarray(problem.gram.kernel.matrix(problem.gram.x, problem.gram.x))
    w = [np.sqrt(coef @ K @ coef) for coef in np.asarray(path.fits.dual_coef)[[1, 2, 0]]]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 1 / np.asarray(w), rtol=1e-6)
    counts = plots.path_support(path).lines[0].get_ydata()
    np.testing.assert_array_equal(counts, (np.asarray(path.fits.dual_coef)[[1, 2, 0]] != 0).sum(axis=1))


def test_scores_mark_both_choices():
    found = SimpleNamespace(
        Cs=[10, 0.1, 1], mean=[0.8, 0.7, 0.79], standard_error=[0.02, 0.05, 0.02], C=10.0, C_one_standard_error=1.0
    )
    axes = plots.path_scores(found)
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[0.1, 0.7], [1, 0.79], [10, 0.8]])
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "best: C = 10" in texts and "within one error: C = 1" in texts


def test_a_history_and_its_picture(problem):
    history = jaxsvm.History()
    fit = jaxsvm.fit(problem, callback=history)
    assert len(history) and history.relative_gap[-1] == float(fit.certificate.relative_gap)
    assert history.steps[-1] == int(fit.steps) and (np.diff(history.seconds) >= 0).all()
    assert (history.dual[-1] <= history.primal[-1]) and history.kernel_evaluations[-1] == fit.kernel_evaluations
    axes = plots.convergence({"smo": history}, against="steps", tol=1e-4)
    assert axes.lines[0].get_ydata()[-1] == history.relative_gap[-1]
    assert axes.lines[1].get_ydata()[0] == 1e-4
    for draw in (plots.convergence, plots.bracket):
        with pytest.raises(jaxsvm.InputError, match="against"):
            draw(history, against="hours")
    primal, dual = (line.get_ydata() for line in plots.bracket(history).lines)
    assert primal[-1] == history.primal[-1] and dual[-1] == history.dual[-1] and (dual <= primal).all()


def test_a_water_level_in_one_and_in_two_basins():
    """Each sample's slack reaches from its response to the level; together they are the volume."""
    c, y = np.array([0.5, -1.0, 2.0, 0.0, -0.5]), np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    for signs, found in ((None, jaxsvm.water_level(c, 2.0)), (y, jaxsvm.water_level_with_bias(c, y, 2.0))):
        axes = plots.water_level(found, c, signs)
        floor, water = map(list, axes.containers)
        heights = np.array([bar.get_y() + bar.get_height() for bar in floor])
        moved = c + (0 if signs is None else y * float(found.bias))
        np.testing.assert_allclose(heights, np.sort(moved) if signs is None else moved[[3, 0, 2, 4, 1]])
        assert sum(bar.get_height() for bar in water) == pytest.approx(2.0)
        tops = [bar.get_y() + bar.get_height() for bar in water if bar.get_height()]
        np.testing.assert_allclose(tops, float(found.level))
        np.testing.assert_allclose(np.sort(axes.figure.axes[1].lines[0].get_ydata()), np.sort(found.p))


def test_boundaries(path, problem, tmp_path):
    x, y = np.asarray(problem.gram.x + problem.gram.shift), np.asarray(problem.y)
    model = jaxsvm.compact(path[2], problem.at(1.0), classes=("no", "yes"))
    axes = plots.decision_boundary(model, x, np.where(y > 0, "yes", "no"), support=path[2].support)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["no", "yes", "support"]
    pairs = dataclasses.replace(
        model,
        classes=("a", "b", "c"),
        coef=jnp.stack([model.coef, -model.coef, model.coef], 1),
        bias=jnp.zeros(3),
        R=jnp.ones(3),
    )
    plots.decision_boundary(pairs, x, np.full(40, "a"), ax=Figure().subplots())
    values = plots.decision_boundary(dataclasses.replace(model, classes=None), x, y)
    values.figure.savefig(tmp_path / "values.png")
    with pytest.raises(jaxsvm.InputError, match="two features"):
        plots.decision_boundary(model, np.zeros((3, 4)), y)


def test_no_pyplot(path):
    loaded = "matplotlib.pyplot" in sys.modules
    path_figure(path)
    plots.path_support(path)
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_a_picture_shows_itself(path):
    formatters = pytest.importorskip("IPython.core.formatters")
    again = pickle.loads(pickle.dumps(path_figure(path)))
    for shown in (again, plots.path_support(path)):
        assert formatters.PNGFormatter()(shown).startswith(b"\x89PNG")
