"""Models of LIBSVM and scikit-learn: there and back, against scikit-learn's SVC, which is LIBSVM; ONNX as it runs."""

import dataclasses
import sys
from itertools import combinations

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR, NuSVC, OneClassSVM

import jaxsvm
from jaxsvm import estimators, interchange
from jaxsvm.datasets import Layout, Scaling
from jaxsvm.errors import DataError, InputError
from jaxsvm.kernels import RBF, Laplacian, Linear, Polynomial, Precomputed, Sigmoid
from jaxsvm.models import interchange as onnx_graph
from jaxsvm.models import libsvm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
X[:, 2] *= RNG.random(60) < 0.5  # zeros, which files leave out
NEW = RNG.normal(size=(20, 3))


def libsvm_file(path, machine, labels=None):
    """What LIBSVM would write of a fitted machine of scikit-learn, with these names of its classes."""
    kernel = {"poly": "polynomial"}.get(machine.kernel, machine.kernel)
    lines = [f"svm_type {machine._impl}", f"kernel_type {kernel}"]
    lines += [f"degree {machine.degree}"] if kernel == "polynomial" else []
    lines += [f"gamma {machine._gamma!r}"] if kernel != "linear" else []
    lines += [f"coef0 {machine.coef0!r}"] if kernel in ("polynomial", "sigmoid") else []
    coef, counts = machine._dual_coef_, machine._n_support
    classifier = machine._impl in ("c_svc", "nu_svc")
    lines += [f"nr_class {len(counts) if classifier else 2}", f"total_sv {coef.shape[1]}"]
    lines += ["rho " + " ".join(repr(float(-b)) for b in machine._intercept_)]
    if classifier:
        names = machine.classes_ if labels is None else labels
        lines += ["label " + " ".join(map(str, names)), "nr_sv " + " ".join(map(str, counts))]
    lines += ["SV"]
    for values, vector in zip(coef.T.tolist(), machine.support_vectors_.tolist(), strict=True):
        entries = [f"{j + 1}:{v!r}" for j, v in enumerate(vector) if v]
        lines.append(" ".join([*map(repr, values), *entries]))
    path.write_text("\n".join(lines) + "\n")
    return path


MACHINES = {
    "rbf": (SVC(gamma=0.3, C=2), 2),
    "linear": (SVC(kernel="linear"), 2),
    "poly": (SVC(kernel="poly", degree=2, gamma=0.5, coef0=1.0), 2),
    "sigmoid": (SVC(kernel="sigmoid", gamma=0.1, coef0=0.2), 2),
    "three": (SVC(gamma=0.3, decision_function_shape="ovo"), 3),
    "nu": (NuSVC(gamma=0.3, nu=0.3), 2),
    "svr": (SVR(gamma=0.3), 0),
    "one class": (OneClassSVM(gamma=0.3, nu=0.3), 1),
}


def trained(name):
    machine, k = MACHINES[name]
    if k == 0:
        return machine.fit(X, np.sin(X[:, 0]))
    if k == 1:
        return machine.fit(X)
    return machine.fit(X, (np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.4, 0.4][: k - 1]) * 3 - 2))


@pytest.mark.parametrize("name", MACHINES)
def test_files_of_libsvm_are_read(name, tmp_path):
    machine = trained(name)
    model = interchange.from_libsvm(libsvm_file(tmp_path / "model", machine))
    values = np.asarray(jaxsvm.decision_function(model, NEW))
    want = machine.predict(NEW) if name == "svr" else machine.decision_function(NEW)
    np.testing.assert_allclose(values, want, atol=1e-9)
    np.testing.assert_allclose(jaxsvm.predict(model, NEW), machine.predict(NEW), atol=1e-9)
    assert np.isinf(model.certificate.relative_gap).all()
    model.save(tmp_path / "model.npz")
    again = jaxsvm.decision_function(jaxsvm.load_model(tmp_path / "model.npz"), NEW)
    np.testing.assert_allclose(again, values, rtol=1e-12)


def test_a_machine_that_turned_its_signs_keeps_its_coefficients(tmp_path):
    """A nu-SVC divides by its margin, which is negative where classes overlap: signs then tell no classes."""
    machine = NuSVC(gamma=0.1, nu=0.1, decision_function_shape="ovo").fit(X, np.arange(60) % 3)
    pairs = libsvm.columns_of_pairs(machine._dual_coef_, machine._n_support)
    of_class = np.repeat(np.arange(3), machine._n_support)
    assert any((pairs[of_class == i, at] < 0).any() for at, i in enumerate((0, 0, 1)))
    for given in (machine, interchange.from_libsvm(libsvm_file(tmp_path / "theirs", machine))):
        interchange.to_libsvm(given, tmp_path / "model")
        values = jaxsvm.decision_function(interchange.from_libsvm(tmp_path / "model"), NEW)
        np.testing.assert_allclose(values, machine.decision_function(NEW), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(by_svm_predict(tmp_path / "model", NEW), machine.decision_function(NEW), atol=1e-6)


@pytest.mark.parametrize(("name", "labels"), [("rbf", [1, -2]), ("three", [4, -2, 1]), ("three", [1, 4, -2])])
def test_labels_come_in_any_order(name, labels, tmp_path):
    machine, k, order = trained(name), len(labels), np.argsort(labels).tolist()
    model = interchange.from_libsvm(libsvm_file(tmp_path / "model", machine, labels))
    assert model.classes == tuple(sorted(labels))
    values, pairs = machine.decision_function(NEW).reshape(len(NEW), -1), list(combinations(range(k), 2))
    pair = lambda i, j: values[:, pairs.index((i, j))] if i < j else -values[:, pairs.index((j, i))]  # noqa: E731
    want = np.stack([pair(i, j) for i, j in combinations(order, 2)], axis=1)  # of two, positive for the second
    np.testing.assert_allclose(jaxsvm.decision_function(model, NEW), want if k > 2 else want[:, 0], atol=1e-9)
    names = np.array(labels)[np.searchsorted(machine.classes_, machine.predict(NEW))]
    np.testing.assert_array_equal(jaxsvm.predict(model, NEW), names)


def test_points_with_more_columns_than_the_support_has_are_told_where_their_number_is_said(tmp_path):
    """svm-train writes entries that are not 0; svm-predict takes any."""
    machine = SVC(gamma=0.3, C=2).fit(np.hstack([X, np.zeros((len(X), 2))]), X[:, 0] > 0)
    file, wide = libsvm_file(tmp_path / "model", machine, [0, 1]), np.hstack([NEW, np.zeros((len(NEW), 2))])
    wide[:, -1] = 0.5  # it is 0 in training, and counts
    with pytest.raises(InputError, match="x_new has 5 features: 3 are needed"):
        jaxsvm.predict(interchange.from_libsvm(file), wide)
    model = interchange.from_libsvm(file, features=5)
    for points in (wide, csr_array(wide)):
        values = np.asarray(jaxsvm.decision_function(model, points))
        np.testing.assert_allclose(values, machine.decision_function(wide), atol=1e-9)
    for bad, said in (
        (2, "features was set to 2, .* 3 features"),
        (0, "features is 0: an integer"),
        (2.5, "is 2.5: an"),
    ):
        with pytest.raises(InputError, match=said):
            interchange.from_libsvm(file, features=bad)


def test_a_file_of_one_class_alone_is_refused(tmp_path):
    """As svm-train writes it: no support vectors, and no rho."""
    header = "svm_type c_svc\nkernel_type rbf\ngamma 0.5\nnr_class 1\ntotal_sv 0\n{}\nlabel 1\nnr_sv 0\nSV\n"
    for rho in ("rho", "rho "):
        (tmp_path / "one").write_text(header.format(rho))
        with pytest.raises(DataError, match="knows one class alone"):
            interchange.from_libsvm(tmp_path / "one")


@pytest.mark.parametrize("name", [name for name in MACHINES if name not in ("nu", "one class")])
def test_there_and_back(name, tmp_path):
    machine = trained(name)
    model = interchange.from_libsvm(libsvm_file(tmp_path / "first", machine))
    interchange.to_libsvm(model, tmp_path / "second")
    back = interchange.from_libsvm(tmp_path / "second")
    want = np.asarray(jaxsvm.decision_function(model, NEW))
    np.testing.assert_allclose(jaxsvm.decision_function(back, NEW), want, atol=1e-12)
    np.testing.assert_allclose(jaxsvm.predict(back, NEW), machine.predict(NEW), atol=1e-9)
    theirs = machine.predict(NEW) if name == "svr" else machine.decision_function(NEW)
    sign = -1 if name in ("rbf", "linear", "poly", "sigmoid") else 1  # of two classes the first is positive there
    np.testing.assert_allclose(sign * by_svm_predict(tmp_path / "second", NEW), theirs, atol=1e-9)


KINDS = np.digitize(X[:, 0], [-0.4, 0.4])
ESTIMATORS = {
    "three classes": (estimators.SVC(C=3.0, decision_function_shape="ovo"), np.array(["a", "b", "c"])[KINDS]),
    "two classes": (estimators.SVC(kernel="poly", coef0=1.0, probability=True), KINDS > 0),
    "squared hinges": (estimators.SVC(loss="squared_hinge", bias="regularized"), KINDS > 0),
    "linear": (estimators.SVC(kernel="linear", decision_function_shape="ovo"), KINDS),
    "nu": (estimators.NuSVC(nu=0.3, decision_function_shape="ovo"), KINDS),
    "path": (estimators.SVCPath(Cs=[1.0, 10.0], cv=3, decision_function_shape="ovo"), KINDS),
    "regression": (estimators.SVR(C=10.0), X[:, 0]),
    "nu regression": (estimators.NuSVR(), X[:, 0]),
    "one class": (estimators.OneClassSVM(nu=0.2), None),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fitted_estimator_becomes_a_model_and_a_file(name, sparse, tmp_path):
    ours, y = ESTIMATORS[name]
    x, new = (csr_array(points) if sparse else points for points in (X, NEW))
    ours = clone(ours).fit(x, y)
    values = "predict" if "regression" in name else "decision_function"
    model = libsvm.model_of(ours)
    np.testing.assert_allclose(jaxsvm.decision_function(model, new), getattr(ours, values)(new), atol=1e-9)
    if "regression" not in name:
        np.testing.assert_array_equal(jaxsvm.predict(model, new), ours.predict(new))
    k = len(model.classes or ())
    interchange.to_libsvm(dataclasses.replace(model, classes=tuple(range(k)) or None), tmp_path / "m")
    found = (-1 if k == 2 else 1) * by_svm_predict(tmp_path / "m", NEW)
    np.testing.assert_allclose(found, getattr(ours, values)(new), atol=1e-9)


def test_a_pipeline_with_a_scaler_becomes_a_model(tmp_path):
    frame = pd.DataFrame(5 + 3 * X, columns=["u", "v", "w"])
    machine = make_pipeline(StandardScaler(), estimators.SVC(C=3.0)).fit(frame, KINDS)
    model = libsvm.model_of(machine)
    assert model.columns == ("u", "v", "w") and np.isfinite(model.certificate.relative_gap).all()
    np.testing.assert_allclose(jaxsvm.decision_function(model, frame), ovo(machine, frame), atol=1e-9)
    interchange.to_libsvm(machine[-1], tmp_path / "model")
    read = interchange.from_libsvm(tmp_path / "model")
    np.testing.assert_allclose(jaxsvm.decision_function(read, machine[0].transform(frame)), ovo(machine, frame))
    for bad, said in ((machine[0], "StandardScaler"), (estimators.SVC(), "fitted"), (np.eye(2), "ndarray")):
        with pytest.raises(InputError, match=said):
            interchange.to_libsvm(bad, tmp_path / "model")
    with pytest.raises(InputError, match="precomputed"):
        interchange.to_onnx(SVC(kernel="precomputed").fit(X @ X.T, KINDS))


def ovo(machine, points):
    return machine[-1].set_params(decision_function_shape="ovo").decision_function(machine[0].transform(points))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: estimators.SVC(kernel="laplacian").fit(X, KINDS), "model has Laplacian, where LIBSVM knows linear"),
        (lambda: estimators.SVC(kernel="precomputed").fit(X @ X.T, KINDS), "kernel is 'precomputed': a model needs"),
        (lambda: estimators.SVC(multi_class="ovr").fit(X, KINDS), "multi_class is 'ovr'"),
        (estimators.LinearSVC, "model is a LinearSVC"),
        (lambda: "model.npz", "model is a str"),
        (estimators.SVC, "a fitted SVC"),
    ],
)
def test_estimators_that_libsvm_has_no_like_of(make, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        interchange.to_libsvm(make(), tmp_path / "m")


def test_refusals(tmp_path):
    model = model_of(jaxsvm.gram(RBF(0.3), X), classes=(0, 1))
    scaled = dataclasses.replace(model, scaling=Scaling.standardise(X), classes=tuple(np.array(["no", "yes"])))
    with pytest.raises(
        InputError, match=r"a scaling, .*; and the classes no, yes, .*replace\(model, classes=\(0, 1\)\)"
    ):
        interchange.to_libsvm(scaled, tmp_path / "m")
    for classes in (("1", "1.0"), (4, 4.0), (0.5, 1), (float("inf"), 1)):
        with pytest.raises(InputError, match="different integers"):
            interchange.to_libsvm(dataclasses.replace(model, classes=classes), tmp_path / "m")
    for classes in ((3, 5.0), (3, 2**53 + 1), (False, True)):
        interchange.to_libsvm(dataclasses.replace(model, classes=classes), tmp_path / "named")
        assert f"label {int(classes[0])} {int(classes[1])}\n" in (tmp_path / "named").read_text()
    lengths = dataclasses.replace(model.basis, kernel=jaxsvm.kernels.RBF(jnp.ones(3)))
    with pytest.raises(InputError, match="of one gamma"):
        interchange.to_libsvm(dataclasses.replace(model, basis=lengths), tmp_path / "m")
    assert not (tmp_path / "m").exists()
    whole = libsvm_file(tmp_path / "whole", trained("rbf")).read_text()
    for broken, said in (
        (whole.split("SV")[0], "there is no line 'SV'"),
        ("\n".join(whole.splitlines()[:-3]), "are announced"),
        (whole.replace("kernel_type rbf", "kernel_type precomputed"), "precomputed"),
        (whole.replace("rho ", "rho 0 "), "do not fit together"),
    ):
        (tmp_path / "broken").write_text(broken)
        with pytest.raises(DataError, match=said):
            interchange.from_libsvm(tmp_path / "broken")
    with pytest.raises(DataError, match="missing: .*No such file"):
        interchange.from_libsvm(tmp_path / "missing")


def by_svm_predict(path, x, base=1):
    """The values of LIBSVM's formulas for rows `index:value` that count from `base`, a column for each pair."""
    head, _, vectors = path.read_text().partition("SV\n")
    head = {key: values.split() for key, _, values in (line.partition(" ") for line in head.splitlines())}
    rows, k = [line.split() for line in vectors.splitlines()], int(head["nr_class"][0])
    z = np.zeros((len(rows), base + x.shape[1]))
    for vector, row in zip(z, rows, strict=True):
        for index, value in (entry.split(":") for entry in row[k - 1 :]):
            vector[int(index)] = float(value)
    x, coef = np.hstack([np.zeros((len(x), base)), x]), np.array([row[: k - 1] for row in rows], float).T
    gamma, coef0, degree = (float(head.get(key, ["0"])[0]) for key in ("gamma", "coef0", "degree"))
    values = {
        "linear": lambda: x @ z.T,
        "rbf": lambda: np.exp(-gamma * ((x[:, None] - z) ** 2).sum(axis=2)),
        "polynomial": lambda: (gamma * x @ z.T + coef0) ** degree,
        "sigmoid": lambda: np.tanh(gamma * x @ z.T + coef0),
    }[head["kernel_type"][0]]()
    of_class = np.repeat(np.arange(k), [int(n) for n in head.get("nr_sv", [len(rows)] + [0] * (k - 1))])
    found = []
    for (i, j), rho in zip(combinations(range(k), 2), head["rho"], strict=True):
        own = np.where(of_class == i, coef[j - 1], 0) + np.where(of_class == j, coef[i], 0)
        found.append(values @ own - float(rho))
    return np.stack(found, axis=1) if k > 2 else found[0]


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("first", [1.0, 0.0])
def test_indices_count_as_the_rows_of_the_training_did(base, first, tmp_path):
    x = X * [first, 1, 1]  # without the first column too
    machine = SVC(kernel="linear").fit(x, KINDS > 0)
    model = dataclasses.replace(libsvm.model_of(machine), classes=(-1, 1), layout=Layout(index_base=base))
    interchange.to_libsvm(model, tmp_path / "m")
    np.testing.assert_allclose(-by_svm_predict(tmp_path / "m", NEW, base), machine.decision_function(NEW), atol=1e-9)
    back = interchange.from_libsvm(tmp_path / "m")
    assert back.layout.index_base == base
    np.testing.assert_allclose(jaxsvm.decision_function(back, NEW), machine.decision_function(NEW), atol=1e-9)


def test_models_of_rows_that_count_from_0(tmp_path):
    head = "svm_type c_svc\nkernel_type linear\nnr_class 2\ntotal_sv 2\nrho 0.25\nlabel 1 -1\nnr_sv 1 1\nSV\n"
    file = tmp_path / "m"
    file.write_text(head + "0.5 0:1 1:0.5 2:2 \n-0.5 0:-1 1:1 \n")
    assert jaxsvm.decision_function(interchange.from_libsvm(file), np.ones((1, 3))) == pytest.approx(1.5)
    with pytest.raises(DataError, match="Invalid index 0"):
        interchange.from_libsvm(file, zero_based=False)
    file.write_text(head + "0.5 1:0.5 2:2 \n-0.5 1:1 \n")
    for zero_based, columns in ((None, 2), (False, 2), (True, 3)):
        assert interchange.from_libsvm(file, zero_based=zero_based).basis.columns == columns
    file.write_text("solver_type L2R_L2LOSS_SVC_DUAL\nnr_class 2\nlabel 1 -1\nnr_feature 1\nbias -1\nw\n0.5 \n")
    with pytest.raises(DataError, match="(?i)a model of LIBLINEAR"):
        interchange.from_libsvm(file)


def certain(machine, k):
    return machine(kernel="linear", C=3.0, probability=True).fit(X, np.digitize(X[:, 0], [-0.4, 0.4][: k - 1]) + 3)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("k", [2, 3])
def test_probabilities_are_handed_on(k, tmp_path):
    ours, theirs = certain(estimators.SVC, k), certain(SVC, k)
    for machine, atol in ((ours, 1e-6), (theirs, 0.01)):  # LIBSVM couples them up to .005
        interchange.to_libsvm(machine, tmp_path / "m")
        for model in (machine, interchange.from_libsvm(tmp_path / "m")):
            found = evaluated(model)
            np.testing.assert_allclose(found["probabilities"], machine.predict_proba(EXACT), atol=atol)
            np.testing.assert_array_equal(found["label"], machine.predict(EXACT))
    labels = [4, 3] if k == 2 else [5, 3, 4]
    said = f"probA {' '.join(map(str, theirs._probA))}\nprobB {' '.join(map(str, theirs._probB))}\n"
    file = libsvm_file(tmp_path / "other", theirs, labels)
    file.write_text(file.read_text().replace("nr_sv", said + "nr_sv"))
    found = evaluated(interchange.from_libsvm(file))["probabilities"]
    np.testing.assert_allclose(found, theirs.predict_proba(EXACT)[:, np.argsort(labels)], atol=0.01)
    file.write_text(file.read_text().replace("probB", "probC"))
    with pytest.raises(DataError, match="probA, probB and rho"):
        interchange.from_libsvm(file)


@pytest.mark.parametrize("machine", [estimators.SVC, SVC, estimators.NuSVC])
def test_ties_broken_by_values(machine, tmp_path):
    x, y = make_blobs(random_state=27)
    q = np.random.default_rng(0).uniform(-15, 15, (4000, 2)).astype(np.float32)
    machine = machine(kernel="linear", break_ties=True).fit(x, y)
    assert evaluated(machine, q)["label"].tolist() == machine.predict(q).tolist()
    assert (
        evaluated(make_pipeline(StandardScaler().fit(0 * x), machine), q)["label"].tolist()
        == machine.predict(q).tolist()
    )
    with pytest.warns(UserWarning, match="break_ties is True"):
        interchange.to_libsvm(machine, tmp_path / "m")


# --- ONNX ------------------------------------------------------------------------------------------------------------

POINTS = np.concatenate([NEW, X[:9]]).astype(np.float32)  # some where a narrow kernel is not 0: within roundings of X
EXACT = POINTS.astype(float)  # the same numbers
KERNELS = {
    "linear": Linear(),
    "rbf": RBF(0.3),
    "rbf a feature": RBF(jnp.array([0.1, 0.2, 0.5])),
    "narrow": RBF(1e13),  # its squares are taken by differences: expanded ones are off by 1e-3
    "laplacian": Laplacian(0.4),
    "laplacian a feature": Laplacian(jnp.array([0.1, 0.2, 0.5])),
    "polynomial": Polynomial(3, 0.5, 1.0),
    "sigmoid": Sigmoid(0.2, -0.1),
    "composed": RBF(0.3) * Polynomial(2, 0.1, 1.0) + 0.5 * Laplacian(0.2),
}


def model_of(gram, **fields):
    """A model of any kernel without a fit: with coefficients that were drawn, a column of them for each pair."""
    k = len(fields.get("classes") or (0, 0))
    pairs = () if k == 2 else (k * (k - 1) // 2,)
    rng = np.random.default_rng(1)
    basis, _ = gram.expansion(jnp.zeros(len(X)))
    coef, bias, ones = rng.normal(size=(basis.size, *pairs)), rng.normal(size=pairs), np.ones(pairs)
    return jaxsvm.Model(
        basis, jnp.asarray(coef), jnp.asarray(bias), ones, jaxsvm.Certificate(ones, ones, ones), **fields
    )


def evaluated(model, points=POINTS):
    """What a graph returns, by name: of ONNX Runtime, and of ONNX's reference in NumPy, which must agree."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'jaxsvm[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")
    from onnx.reference import ReferenceEvaluator

    proto = interchange.to_onnx(model)
    onnx.checker.check_model(proto, full_check=True)
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"x": points}), strict=True))
    for name, value in zip(names, ReferenceEvaluator(proto).run(None, {"x": points}), strict=True):
        if value.dtype == np.float32:
            np.testing.assert_allclose(value, found[name], rtol=1e-6, atol=1e-6)
        else:
            assert value.tolist() == found[name].tolist()
    return found


def require_same(model, points=POINTS, exact=EXACT):
    """The same outputs as those of jaxsvm; returns the labels."""
    found = evaluated(model, points)
    values = np.asarray(jaxsvm.decision_function(model, exact))
    name = "values" if model.classes is None else "scores"
    assert set(found) == {name} | ({"label"} if name == "scores" else set())
    assert found[name].dtype == np.float32
    assert found[name].shape == values.shape
    np.testing.assert_allclose(found[name], values, rtol=2e-6, atol=2e-6 * np.abs(values).max())
    if model.classes is not None:
        assert found["label"].tolist() == jaxsvm.predict(model, exact).tolist()
    return found.get("label")


@pytest.mark.parametrize("name", KERNELS)
def test_onnx_knows_every_kernel(name):
    gram = jaxsvm.gram(KERNELS[name], Scaling.standardise(X)(X))
    label = require_same(model_of(gram, classes=("no", "yes"), scaling=Scaling.standardise(X)))
    assert set(label) <= {"no", "yes"}


@pytest.mark.parametrize("name", MACHINES)
def test_onnx_says_what_scikit_learn_says(name):
    machine = trained(name)
    found = evaluated(machine)
    if name == "svr":
        np.testing.assert_allclose(found["values"], machine.predict(EXACT), rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_allclose(found["scores"], machine.decision_function(EXACT), rtol=1e-5, atol=1e-6)
        assert found["label"].dtype == np.int64
        assert found["label"].tolist() == machine.predict(EXACT).tolist()


CLASSES = [("a", "b", "c"), (0, 1, 2, 3), (0.5, 1.5), (False, True), (-1, 1), (3, 2**63 + 5), None]


@pytest.mark.parametrize("classes", CLASSES, ids=str)
def test_labels_in_onnx_are_the_classes(classes):
    labels = require_same(model_of(jaxsvm.gram(RBF(0.3), X), classes=classes))
    if classes is not None:
        assert set(labels.tolist()) <= set(classes)
        assert len(set(labels.tolist())) > 1


@pytest.mark.parametrize("bias", [[0.0, 0, 0], [1, -1, 1], [-1, 1, -1], [-1, 0, 1]], ids=str)
def test_ties_in_onnx_are_broken_alike(bias):
    model = model_of(jaxsvm.gram(Linear(), X), classes=("a", "b", "c"))
    require_same(dataclasses.replace(model, coef=0 * model.coef, bias=jnp.array(bias)))


def test_a_score_of_zero_is_positive_in_onnx():
    model = model_of(jaxsvm.gram(Linear(), X), classes=("no", "yes"))
    label = require_same(dataclasses.replace(model, coef=0 * model.coef, bias=jnp.array(0.0)))
    assert set(label) == {"yes"}


BASES = {
    "nystroem": lambda: jaxsvm.gram(RBF(0.3), X, rank=12),
    "fourier": lambda: jaxsvm.gram(RBF(0.3), X, rank=40, method="fourier"),
    "sparse": lambda: jaxsvm.gram(RBF(0.3), csr_array(X)),
    "sparse, linear": lambda: jaxsvm.gram(Linear(), csr_array(X)),
    "far from the origin": lambda: jaxsvm.gram(RBF(0.3), X + 1000),
}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("classes", [(0, 1), (0, 1, 2)], ids=len)
def test_onnx_knows_features_and_sparse_points(name, classes):
    points = POINTS + np.float32(1000) if name == "far from the origin" else POINTS
    require_same(model_of(BASES[name](), classes=classes), points, points.astype(float))


def test_onnx_takes_kernel_values_computed_elsewhere():
    model = model_of(jaxsvm.gram(Precomputed(), X @ X.T), classes=(0, 1))
    kept = np.array([3, 7, 50])
    model = dataclasses.replace(
        model,
        basis=dataclasses.replace(model.basis, x=jnp.asarray(kept)),
        coef=jnp.asarray(np.asarray(model.coef)[kept]),
    )
    values = (EXACT @ X.T).astype(np.float32)
    require_same(model, values, values.astype(float))


def test_a_constant_in_onnx():
    model = model_of(jaxsvm.gram(RBF(0.3), X), classes=None)
    basis = dataclasses.replace(model.basis, x=model.basis.x[:0])
    found = evaluated(dataclasses.replace(model, basis=basis, coef=model.coef[:0]))
    np.testing.assert_allclose(found["values"], np.full(len(POINTS), float(model.bias)), rtol=1e-6)


def test_an_onnx_file_names_its_columns(tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'jaxsvm[onnx]'")
    model = model_of(jaxsvm.gram(RBF(0.3), X), layout=Layout(columns=("height", "width", "depth")))
    proto = interchange.to_onnx(model, tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx") == proto
    assert proto.metadata_props[0].value == '["height", "width", "depth"]'


def test_what_onnx_cannot_hold(monkeypatch):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'jaxsvm[onnx]'")
    own = model_of(jaxsvm.gram(lambda x, z: jnp.exp(-jnp.abs(x - z).max()), X))
    with pytest.raises(InputError, match="the kernel Function, a function of your own"):
        interchange.to_onnx(own)
    model = model_of(jaxsvm.gram(RBF(0.3), X))
    with pytest.raises(InputError, match="truth values"):
        interchange.to_onnx(dataclasses.replace(model, classes=(None, 1)))
    wide = csr_array((np.ones(60), (np.arange(60), np.arange(60))), shape=(60, 2**23))
    with pytest.raises(InputError, match="60 sparse support vectors of 8388608 columns"):
        interchange.to_onnx(model_of(jaxsvm.gram(RBF(0.3), wide)))
    assert len(interchange.to_onnx(model_of(jaxsvm.gram(Linear(), wide))).SerializeToString()) > 8 * 2**23
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="60 support vectors of 3 columns, .* ends at 2 GiB"):
        interchange.to_onnx(model)


def test_onnx_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"pip install 'jaxsvm\[onnx\]'"):
        interchange.to_onnx(model_of(jaxsvm.gram(RBF(0.3), X)))
