"""What holds arrays is shown in a line, whether it has values or not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from samples import data, gram, hinge, svm

import jaxsvm
from jaxsvm import coresets, screening
from jaxsvm.kernels import RBF, Linear
from jaxsvm.model_selection.cross_validation import end_of
from jaxsvm.results.fit import BIT_OF_OTHERS, Counters

X, Y = data()


@functools.cache
def path():
    return jaxsvm.solve_path(svm(), [1.0, 2.0])


SHOWN = {
    "path": path,
    "stored": gram,
    "on demand": lambda: jaxsvm.gram(RBF(0.5), X),
    "sparse": lambda: jaxsvm.gram(Linear(), scipy.sparse.csr_array(X)),
    "low rank": lambda: jaxsvm.gram(RBF(0.5), X, rank=7),
    "squared hinge": svm,
    "hinge": lambda: hinge(bias="free"),
    "slack": lambda: jaxsvm.slack_problem(gram(), Y, 0.1),
    "ball": lambda: jaxsvm.meb_problem(gram()),
    "machines": lambda: jaxsvm.one_versus_one(lambda signs: jaxsvm.svm_problem(gram(), signs), (Y > 0) * 1),
    "fit": lambda: jaxsvm.fit(svm()),
    "folds": lambda: jaxsvm.cross_validate(svm(), [1.0, 2.0], 3),
    "model": lambda: jaxsvm.compact(jaxsvm.fit(svm()), svm()),
    "screening": lambda: screening.ball_test_1(svm(2.1), jaxsvm.fit(svm())),
    "coreset": lambda: coresets.coreset(X, Y, 1.0, 20, jax.random.key(0)),
    "widths": lambda: RBF(np.ones(200)),
    "scaling": lambda: jaxsvm.datasets.Scaling.standardise(X),
    "dataset": lambda: jaxsvm.datasets.Dataset(X, Y, ("a", "b"), "file.csv"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHOWN)
def test_it_is_shown_in_a_line(name):
    shown = SHOWN[name]()
    text = repr(shown)
    assert text.startswith(type(shown).__name__ + "(") and "\n" not in text and len(text) < 400
    if jax.tree.structure(shown).num_leaves > 1:
        seen = []
        jax.eval_shape(lambda tree: seen.append(repr(tree)) or 0, shown)
        assert "Tracer" not in seen[0] and "\n" not in seen[0] and len(seen[0]) < 500
        assert repr(jax.tree.map(lambda _: None, shown)).startswith(type(shown).__name__)


def test_shapes_kernel_and_what_is_stored_are_in_it():
    assert (
        repr(gram())
        == "DenseGram(kernel=RBF(gamma=0.5), x=float64[60, 2], shift=float64[2], K=float64[60, 60], near=True)"
    )
    assert "K=" not in repr(jaxsvm.gram(RBF(0.5), X)) and "CSR(data=float64[120]" in repr(SHOWN["sparse"]())
    rest = "regularized bias, 60 samples in float64, DenseGram of RBF(gamma=0.5))"
    assert repr(svm()) == f"SquaredHingeProblem(squared hinge: C / 2 max(0, 1 - y f)^2, C=2, {rest}"
    assert repr(hinge(bias="free")).startswith("BoxProblem(hinge: C max(0, 1 - y f), C=2, free bias, 60 samples in ")


@pytest.mark.thorough
def test_statuses_of_lanes_are_counted():
    fits = jaxsvm.fit_many(SHOWN["machines"]())
    assert repr(fits.status) == "Status(1 CONVERGED)" and repr(fits.status[0]) == "Status.CONVERGED"
    assert repr(jax.tree.map(lambda _: np.array([1, 2, 1]), fits.status)) == "Status(2 CONVERGED, 1 STALLED)"
    scored = jaxsvm.cross_validate(svm(), [1.0, 2.0], 3, gammas=[0.5])
    note = f"The best C, {scored.C:g}, is the {'smallest' if scored.C == 1 else 'largest'} of the grid"
    best = f"best mean score {max(scored.mean[0]):.6g} at C={scored.C:.6g}, gamma=0.5"
    assert repr(scored).startswith(f"WidthValidation(1 widths x 2 values of C, {best}. {note}")
    assert note in repr(scored.best) and end_of("gamma", 2.0, [1, 2, 3]) is None and end_of("C", 2.0, [2, 2]) is None


@pytest.mark.thorough
def test_a_tuned_answer_is_shown_in_a_line():
    tuned = jaxsvm.tune(RBF(0.5), X, Y, folds=3, steps=1)
    text = repr(tuned)
    assert "\n" not in text and "fit=Fit(CONVERGED" in text and "RBF(gamma=0.5)" in text


def test_a_path_is_a_table_in_a_notebook():
    table = path()._repr_html_()
    assert table.startswith("<table>") and table.count("<tr>") == 3 and table.count("CONVERGED") == 2
    long = jax.tree.map(lambda leaf: jnp.repeat(leaf, 50, axis=0), path())
    assert long._repr_html_().count("<tr>") == 42 and "... 60 more" in long._repr_html_()
    assert jax.tree.map(lambda leaf: leaf[None], path())._repr_html_() is None
    assert jax.eval_shape(lambda path: path, path())._repr_html_() is None


def test_counters_add_beyond_32_bits_and_name_solvers():
    first = Counters.zero().evaluated(10**6, 10**6)
    both = first.plus(first.evaluated(3)._replace(solvers=jnp.asarray(1 << BIT_OF_OTHERS)))
    assert both.total == 2 * 10**12 + 3
    assert jaxsvm.Fit(*[None] * 7, both).solvers == ("another",)
