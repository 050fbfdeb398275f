"""The command: reports, exit codes, refusals, models that come back, Ctrl-C, the cache."""

import base64
import csv
import dataclasses
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from sklearn.datasets import load_iris
from sklearn.svm import SVC, SVR
from typer.testing import CliRunner

import jaxsvm
from jaxsvm import cli
from jaxsvm.cli import source
from jaxsvm.datasets import Scaling, load
from jaxsvm.estimators import SVC as Estimator
from jaxsvm.gram import build
from jaxsvm.loop.interruption import Interruption

ROOT = Path(__file__).resolve().parent.parent


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def report_of(*arguments, code=0):
    result = invoke(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def refusal(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert result.stderr.startswith("Usage") or result.stderr.count("\n") == 1
    assert result.stderr.startswith(("Usage", "jaxsvm: error: "))
    return " ".join(re.sub("[│╭╮╰╯─]", "", result.stderr).split())


@pytest.fixture(autouse=True)
def no_signal_before(monkeypatch):
    """A second one within two seconds raises, also in the next call of a process."""
    monkeypatch.setattr(Interruption, "last", -math.inf)


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-1, 1, (40, 3)), rng.normal(1, 1, (40, 3))]) * [1, 10, 100]
    return x, np.repeat(["no", "yes"], 40)


def table(file, header, x, y):
    lines = [",".join([*map(repr, row), label]) for row, label in zip(x.tolist(), y, strict=True)]
    file.write_text("\n".join([*filter(None, [header]), *lines]) + "\n", encoding="utf-8")
    return file


def svmlight(path, x, y, base):
    rows = ([f"{j}:{value!r}" for j, value in enumerate(row, base) if value] for row in x.tolist())
    path.write_text("".join(" ".join([label, *row]) + "\n" for label, row in zip(y, rows, strict=True)))
    return path


@pytest.fixture(scope="module")
def data(points, tmp_path_factory):
    return table(tmp_path_factory.mktemp("data") / "points.csv", "a,b,c,answer", *points)


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "model.npz"
    report_of("fit", data, "--scale", "standardise", "--C", "2", "--gamma", "0.5", "--out", file)
    return file


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    x, y = load_iris(return_X_y=True)
    directory, names = tmp_path_factory.mktemp("flowers"), np.asarray(["setosa", "versicolor", "virginica"])[y]
    file = table(directory / "iris.csv", "a,b,c,d,kind", x, names)
    return file, svmlight(directory / "iris.svm", x, ["0"] * len(y), 1), x, names


# --- fit and path: reports ---


def test_fit_reports_a_certificate(data):
    report = report_of("fit", data, "--scale", "min-max")
    assert report["status"] == "CONVERGED" and report["certified"] is True
    assert 0 <= report["relative_gap"] <= report["tol"] == 1e-4 and report["dual"] <= report["primal"]
    assert (report["n"], report["d"]) == (80, 3)
    assert report["classes"] == ["no", "yes"] and report["out"] is None
    assert 0.8 < report["train_accuracy"] <= 1
    assert report["kernel"]["kernel"] == "RBF"
    said = invoke("fit", data, "--scale", "standardise")
    assert said.exit_code == 0 and "CONVERGED" in said.stdout and "relative gap" in said.stdout and said.stderr == ""


def test_help_is_in_groups():
    for command, groups in (("fit", ("Data", "Model", "Solver", "Output")), ("relational", ("Data", "Output"))):
        said = invoke(command, "--help").stdout
        places = [said.index(f"─ {group} ─") for group in groups]
        assert places == sorted(places)


KERNELS = {
    "linear": "",
    "polynomial": "--degree 2 --coef0 0.5",
    "laplacian": "--gamma median",
    "sigmoid": "--gamma 0.01 --coef0 0",
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels(data, kernel):
    result = invoke("fit", data, "--kernel", kernel, "--scale", "standardise", "--json", *KERNELS[kernel].split())
    report = json.loads(result.stdout)
    assert report["kernel"]["kernel"].lower() == kernel
    assert result.exit_code == (0 if report["certified"] else 1) and (kernel == "sigmoid" or report["certified"])


def test_several_classes(flowers, tmp_path):
    """All pairs, as scikit-learn's SVC; a model that shifts columns takes sparse rows."""
    file, sparse, x, names = flowers
    out, written = tmp_path / "model.npz", tmp_path / "labels.csv"
    options = ["--scale", "standardise", "--loss", "hinge", "--C", 10, "--tol", 1e-6, "--out", out]
    report = report_of("fit", file, *options)
    assert report["certified"] and report["machines"] == 3
    assert report["dual"] <= report["primal"] and report["relative_gap"] <= 1e-6
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    theirs = SVC(C=10, tol=1e-8, decision_function_shape="ovo").fit(scaled, names)
    assert report["support"] == len(theirs.support_)
    found = report_of("predict", out, file, "--out", written)
    np.testing.assert_allclose(found["decision"], theirs.decision_function(scaled), atol=1e-3)
    assert found["labels"] == theirs.predict(scaled).tolist() and found["accuracy"] > 0.95
    assert written.read_text().startswith("label,setosa | versicolor,setosa | virginica,versicolor | virginica\n")
    dense = invoke("predict", out, sparse)
    assert dense.stdout.split() == found["labels"] and "accuracy unknown" in dense.stderr
    described = report_of("info", out)
    assert described["classes"] == ["setosa", "versicolor", "virginica"] and described["d"] == 4


def test_several_classes_by_squared_hinges(flowers, tmp_path):
    """C counts as it does for two classes: a pair alone gives the same decision values."""
    file, _, x, names = flowers
    out, pair, alone = tmp_path / "model.npz", tmp_path / "pair.npz", tmp_path / "alone.npz"
    report_of("fit", file, "--gamma", 0.5, "--out", out)
    np.savez(pair, X=x[names != "setosa"], y=names[names != "setosa"])
    report_of("fit", pair, "--gamma", 0.5, "--out", alone)
    together, single = (report_of("predict", each, pair)["decision"] for each in (out, alone))
    np.testing.assert_allclose(-np.asarray(together)[:, 2], single, atol=2e-2)


def test_one_class_against_the_rest(tmp_path):
    rng = np.random.default_rng(1)
    y = np.repeat([3, 5, 8], 20)
    file, out = tmp_path / "three.npz", tmp_path / "model.npz"
    np.savez(file, X=rng.normal(size=(60, 2)) + 3 * (y == 8)[:, None], y=y)
    assert "positive" in refusal("fit", file, "--positive", 4)
    report_of("fit", file, "--positive", 8, "--out", out)
    report = report_of("predict", out, file)
    assert set(report["labels"]) == {"8", "not 8"} and report["accuracy"] > 0.9


def test_regression(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.sin(x[:, 0]) + 0.05 * rng.normal(size=60)
    file, out = tmp_path / "train.npz", tmp_path / "model.npz"
    np.savez(file, X=x, y=y)
    options = ["--loss", "epsilon_insensitive", "--gamma", 0.5, "--tol", 1e-6]
    report = report_of("fit", file, *options, "--epsilon", 0.2, "--C", 3, "--out", out)
    assert report["certified"] and report["epsilon"] == 0.2
    theirs = SVR(gamma=0.5, C=3, epsilon=0.2, tol=1e-8).fit(x, y)
    found = report_of("predict", out, file)
    np.testing.assert_allclose(found["labels"], theirs.predict(x), atol=1e-4)
    assert found["r2"] == pytest.approx(theirs.score(x, y), abs=1e-4)
    page = tmp_path / "page.html"
    path = report_of("path", file, *options, "--C", "0.001,3", "--folds", 3, "--report", page)
    assert path["chosen_C"] == 3 and path["path"][1]["cv_r2"] > 0.5 and path["epsilon"] == 0.1
    assert page.read_text().count("<img") == 2
    assert "too many to be classes" in refusal("fit", file) and "--loss epsilon_insensitive" in refusal("fit", file)


def test_path(data):
    report = report_of("path", data, "--scale", "standardise", "--n-c", 4)
    np.testing.assert_allclose([row["C"] for row in report["path"]], np.geomspace(1e-2, 1e3, 4))
    assert all(row["certified"] and row["relative_gap"] <= 1e-4 for row in report["path"])
    assert report["not_reached"] == [] and report["chosen_C"] is None  # nothing chooses


def test_path_of_listed_values(data, tmp_path):
    out, options = tmp_path / "model.npz", ["--scale", "standardise"]
    report = report_of("path", data, *options, "--C", "10,0.1,1")
    assert [row["C"] for row in report["path"]] == [10, 0.1, 1] and report["chosen_C"] is None
    alone = report_of("path", data, *options, "--C", 1, "--out", out)
    assert len(jaxsvm.load_model(out).coef) == alone["path"][0]["support"] and alone["chosen_C"] == 1


def test_folds_choose(flowers, data, tmp_path):
    out = tmp_path / "model.npz"
    options = ["--C", "0.01,1,10000", "--folds", 3, "--scale", "standardise", "--loss", "hinge"]
    for file, count in ((flowers[0], 3), (data, 1)):
        report = report_of("path", file, *options, "--out", out)
        scores = [row["cv_accuracy"] for row in report["path"]]
        assert report["chosen_C"] == report["path"][int(np.argmax(scores))]["C"] == 1
        assert all(0 <= row["cv_standard_error"] < 0.2 and row["certified"] for row in report["path"])
        assert report["note"] is None and np.shape(jaxsvm.load_model(out).bias) == ((count,) if count > 1 else ())
    titles = next(line for line in invoke("path", data, *options).stdout.splitlines() if "support" in line)
    assert "cv accuracy" in titles


def test_a_report_is_one_page(flowers, data, tmp_path):
    file = tmp_path / "a <b> & c.html"
    options = ["--C", "0.01,1", "--scale", "standardise", "--loss", "hinge", "--report", file]
    report = report_of("path", flowers[0], *options, "--folds", 3)
    page = file.read_text(encoding="utf-8")
    images = [base64.b64decode(found) for found in re.findall('src="data:image/png;base64,([^"]+)"', page)]
    assert len(images) == page.count("src=") == 2 and not re.search("<script|<link|<iframe|href=| on[a-z]+=", page)
    assert all(picture.startswith(b"\x89PNG") and len(picture) > 5000 for picture in images)
    assert "Path over C: iris.csv" in page and "2 of 2 values of C are certified" in page and "versicolor" in page
    assert f"{report['path'][1]['cv_accuracy']:.5g}" in page and "cv accuracy" in page
    assert "a &lt;b&gt; &amp; c.html" in page
    report_of("path", data, *options)
    assert file.read_text().count("<img") == 1
    for place in (tmp_path, data):
        assert "--report" in refusal("path", data, "--report", place)


def test_where_the_labels_are_is_said(flowers, tmp_path):
    """The first column holds them in many files: a report that says which one was taken shows the mistake."""
    lines = [line.split(",") for line in flowers[0].read_text().splitlines()]
    first = tmp_path / "first.csv"
    first.write_text("\n".join(",".join([line[-1], *line[:-1]]) for line in lines) + "\n")
    assert "say where the labels are (--label)" in refusal("fit", first)
    report = report_of("fit", first, "--label", lines[0][-1])
    assert report["label"] == lines[0][-1] and report["certified"]


def test_float32(data, tmp_path):
    out = tmp_path / "model.npz"
    report_of("fit", data, "--scale", "standardise", "--dtype", "float32", "--out", out)
    assert jaxsvm.load_model(out).coef.dtype == np.float32
    report_of("predict", out, data)


def test_the_floor_of_float64_advises_no_float64(data):
    options = ["fit", data, "--scale", "standardize", "--kernel", "linear", "--tol", 1e-30]
    result = invoke(*options)
    assert result.exit_code == 1 and "STALLED" in result.stderr and "--dtype" not in result.stderr
    assert "--dtype float64" in invoke(*options, "--dtype", "float32").stderr


# --- predict ---


def test_predict_agrees_with_the_library(points, data, model, tmp_path):
    x, y = points
    scaling = Scaling.standardise(x)
    gram = jaxsvm.gram(jaxsvm.kernels.RBF(0.5), scaling(x))
    problem = jaxsvm.svm_problem(gram, np.where(y == "yes", 1.0, -1.0), 2.0)
    expected = jaxsvm.decision_function(jaxsvm.fit(problem), problem, scaling(x))
    report = report_of("predict", model, data)
    np.testing.assert_allclose(report["decision"], expected, rtol=1e-9, atol=1e-9)
    labels = jaxsvm.predict(jaxsvm.load_model(model), load(data).x).tolist()
    assert report["labels"] == labels and report["accuracy"] == np.mean(np.asarray(labels) == y)
    plain = invoke("predict", model, data)
    assert plain.stdout.split() == labels and "accuracy" in plain.stderr
    written = tmp_path / "labels.csv"
    report_of("predict", model, data, "--out", written)
    rows = written.read_text().splitlines()
    assert rows[0] == "label,decision" and [row.split(",")[0] for row in rows[1:]] == labels


def unlabelled_file(directory, kind, x):
    file = directory / f"new.{kind}"
    if kind == "npz":
        np.savez(file, X=x)
    elif kind == "parquet":
        pa.parquet.write_table(pa.table(dict(zip("abc", x.T, strict=True))), file)
    elif kind == "svm":  # its labels are of neither class
        svmlight(file, x, ["7"] * len(x), 1)
    else:
        file.write_text("\n".join(",".join(map(repr, row)) for row in x.tolist()) + "\n")
    return file


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet", "svm"])
@pytest.mark.parametrize("said", [True, False])
def test_predict_without_labels(points, data, model, tmp_path, kind, said):
    if kind == "svm":  # sparse points cannot be shifted, so the model must not do it
        model = tmp_path / "unscaled.npz"
        report_of("fit", data, "--out", model)
    expected = report_of("predict", model, data)
    file, options = unlabelled_file(tmp_path, kind, points[0]), ["--unlabelled"] if said else []
    result = invoke("predict", model, file, *options)
    assert result.exit_code == 0 and result.stdout.split() == expected["labels"], result.output
    unsaid = "accuracy unknown (DATA has other" if kind == "svm" else "no labels in DATA"
    assert result.stderr.count("\n") == 1 and ("accuracy" in result.stderr) == (kind == "svm" and not said)
    assert (unsaid in result.stderr) != said
    report = report_of("predict", model, file, *options)
    assert report["accuracy"] is None
    np.testing.assert_allclose(report["decision"], expected["decision"], rtol=1e-9)


def test_predict_takes_labels_for_what_they_are(points, data, model, tmp_path):
    named = tmp_path / "named.csv"
    named.write_text("a,b,c\n" + unlabelled_file(tmp_path, "csv", points[0]).read_text())
    assert "no labels" in invoke("predict", model, named).stderr
    assert "lacks the column 'c'" in refusal("predict", model, named, "--label", "c")  # a label that is named is one
    assert "--unlabelled" in refusal("predict", model, named, "--unlabelled", "--label", "c")
    assert refusal("predict", model, data, "--unlabelled")  # the words of its last column are no numbers
    assert "no labels 'y'" in refusal("fit", unlabelled_file(tmp_path, "npz", points[0]))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_predict_puts_columns_in_order(points, model, tmp_path, kind):
    """Columns in another order, the labels where they are not last: an accuracy of 0.05, without a word."""
    x, y = points
    file = tmp_path / f"new.{kind}"
    columns = {"c": x[:, 2], "answer": y, "a": x[:, 0], "b": x[:, 1]}
    if kind == "parquet":
        pa.parquet.write_table(pa.table(columns), file)
    else:
        rows = zip(*columns.values(), strict=True)
        file.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    report = report_of("predict", model, file)
    assert report["accuracy"] > 0.9 and len(report["notes"]) == 2
    plain = invoke("predict", model, file)
    assert "columns are put in the order" in plain.stderr and "labels are in column 'answer'" in plain.stderr
    assert "has the column 'answer'" in refusal("predict", model, file, "--unlabelled")
    dropped = report_of("predict", model, file, "--drop", "answer", "--unlabelled")
    assert dropped["decision"] == report["decision"]
    few = table(tmp_path / "few.csv", "c,answer", x[:, 2:], y)
    assert "lacks the columns 'a', 'b'" in refusal("predict", model, few)
    info = report_of("info", model)
    assert info["columns"] == ["a", "b", "c"] and info["label"] == "answer" and info["index_base"] is None


@pytest.mark.parametrize("header", ["answer,a,b,c\n", ""])
def test_predict_without_label_on_a_file_trained_with_it(points, tmp_path, header):
    x, y = points
    file, out = tmp_path / "first.csv", tmp_path / "model.npz"
    rows = zip(np.where(y == "yes", 1, 0).tolist(), x.tolist(), strict=True)
    file.write_text(header + "".join(",".join(map(repr, [label, *row])) + "\n" for label, row in rows))
    label = "answer" if header else "0"
    report_of("fit", file, "--label", label, "--scale", "standardise", "--out", out)
    said, unsaid = report_of("predict", out, file, "--label", label), report_of("predict", out, file)
    assert unsaid["accuracy"] == said["accuracy"] > 0.9 and unsaid["decision"] == said["decision"]
    assert "labels are in column" in unsaid["notes"][0] and said["notes"] == []


def test_labels_with_commas_are_quoted(points, tmp_path):
    x, y = points
    out, written = tmp_path / "model.npz", tmp_path / "labels.csv"
    file = table(tmp_path / "train.csv", "a,b,c,kind", x, np.where(y == "yes", '"cat, ""small"""', "d\u00f6g"))
    report_of("fit", file, "--scale", "standardise", "--out", out)
    report = report_of("predict", out, file, "--out", written)
    assert set(report["labels"]) == {'cat, "small"', "d\u00f6g"}
    with open(written, encoding="utf-8", newline="") as stored:
        rows = list(csv.reader(stored, strict=True))
    pairs = zip(report["labels"], report["decision"], strict=True)
    assert rows == [["label", "decision"], *([a, repr(b)] for a, b in pairs)]
    assert load(written, label="label").y.tolist() == report["labels"]


@pytest.mark.thorough
def test_a_svmlight_file_whose_indices_start_elsewhere(tmp_path):
    """0.96 became 0.50."""
    rng = np.random.default_rng(0)
    x, signs = rng.normal(size=(60, 4)), np.repeat(["1", "-1"], 30)
    x[:, 1] += np.where(signs == "1", 3, -3)
    train, model, other = svmlight(tmp_path / "train.svm", x, signs, 0), tmp_path / "model.npz", tmp_path / "other.npz"
    report_of("fit", train, "--kernel", "linear", "--out", model)
    assert report_of("info", model)["index_base"] == 0
    x[:, [0, 3]] = 0  # neither end says where the indices start
    report = report_of("predict", model, svmlight(tmp_path / "lacking.svm", x, signs, 0))
    assert report["accuracy"] > 0.95 and "count from 0, as in the training file" in report["notes"][0]
    one = svmlight(tmp_path / "one.svm", x, signs, 1)
    assert report_of("predict", model, one, "--index-base", 1)["decision"] == report["decision"]
    report_of("fit", svmlight(tmp_path / "again.svm", x, signs, 1), "--out", other)
    assert "--index-base 0" in refusal("predict", other, train)
    assert "the index 0 occurs" in refusal("path", train, "--C", 1, "--index-base", 1)


# --- what is not certified, and Ctrl-C ---


def test_what_is_not_certified_is_written_and_says_so(data, tmp_path):
    out = tmp_path / "model.npz"
    result = invoke("fit", data, "--max-seconds", 0, "--tol", 1e-13, "--out", out, "--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["certified"] is False
    assert "not certified" in result.stderr and jaxsvm.load_model(out).coef.size > 0


@pytest.mark.parametrize("command", ["fit", "path --C 1"])
def test_coefficients_that_are_not_finite_make_no_model(data, tmp_path, command):
    out = tmp_path / "model.npz"
    options = ["--kernel", "polynomial", "--degree", 50, "--dtype", "float32", "--out", out, "--json"]
    result = invoke(*command.split(), data, *options)
    assert result.exit_code == 1 and json.loads(result.stdout)["out"] is None and not out.exists()
    assert "no model is written" in result.stderr


def test_path_that_runs_out_of_time(data):
    assert "--max-seconds is too short" in refusal("path", data, "--n-c", 3, "--max-seconds", 0)


def test_ctrl_c_saves_the_last_certified_point(data, tmp_path, monkeypatch):
    out, real = tmp_path / "model.npz", jaxsvm.fit

    def interrupted(problem, **options):
        options["callback"] = lambda fitted: signal.raise_signal(signal.SIGINT)
        return real(problem, **options)

    monkeypatch.setattr(jaxsvm, "fit", interrupted)
    report = report_of("fit", data, "--tol", 1e-13, "--out", out, code=130)
    assert report["status"] == "INTERRUPTED" and np.isfinite(report["relative_gap"])
    assert len(jaxsvm.load_model(out).coef) == report["support"]


@pytest.mark.parametrize("classes", [2, 3])
def test_ctrl_c_keeps_the_values_of_a_path_that_were_reached(tmp_path, monkeypatch, classes):
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(60, 2)), np.repeat(np.arange(classes), 60 // classes)
    x[:, 0] += 3 * labels
    file, out, calls, path, many = tmp_path / "x.npz", tmp_path / "model.npz", [], jaxsvm.solve_path, Estimator.fit
    np.savez(file, X=x, y=labels)

    def of_two(*arguments, callback, **options):
        assert callback is None  # no terminal, no bar
        pressed = lambda place, _: signal.raise_signal(signal.SIGINT) if place == 1 else None  # noqa: E731
        return path(*arguments, callback=pressed, **options)

    def of_several(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return many(*arguments, **options)

    monkeypatch.setattr(jaxsvm, "solve_path", of_two)
    monkeypatch.setattr(Estimator, "fit", of_several)
    report = report_of("path", file, "--C", "0.1,1,10", "--folds", 3, "--out", out, code=130)
    reached = [row["C"] for row in report["path"]]
    assert sorted(reached + report["not_reached"]) == [0.1, 1, 10] and len(reached) > 1
    assert classes == 2 or reached == [0.1, 1]
    assert jaxsvm.load_model(out).coef.size > 0


@pytest.mark.parametrize("reached", [0, 1, 2])
def test_a_path_that_is_stopped_within_its_folds_chooses_by_those_reached(data, tmp_path, monkeypatch, reached):
    """If none was, the model is that of the C nearest to 1, and nothing is called chosen."""
    out, real, found = tmp_path / "model.npz", jaxsvm.cross_validate, []

    def interrupted(*arguments, **options):
        if not reached:
            signal.raise_signal(signal.SIGINT)
            return real(*arguments, **options)
        result = real(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        scores = np.where(np.arange(3)[:, None] < reached, result.scores, np.nan)
        scores[2, :1] = result.scores[2, :1] if reached == 2 else np.nan  # a fold that reached one value
        found.append(scores)
        return dataclasses.replace(result, scores=scores)

    monkeypatch.setattr(jaxsvm, "cross_validate", interrupted)
    result = invoke("path", data, "--C", "0.1,3,40", "--folds", 3, "--out", out, "--json")
    report, primal = json.loads(result.stdout), float(jaxsvm.load_model(out).certificate.primal)
    C = next(row["C"] for row in report["path"] if row["primal"] == pytest.approx(primal))
    assert result.exit_code == 130 and len(report["path"]) == 3
    if not reached:
        assert report["chosen_C"] is None and C == 3 and "no score was reached" in result.stderr
    elif reached == 1:
        assert C == report["chosen_C"] == [0.1, 3, 40][int(np.argmax(found[0][0]))]
        assert "by 1 of 3 folds" in report["note"]
    else:  # one value has a score in every fold
        assert C == report["chosen_C"] == 0.1 and "folds" not in (report["note"] or "")


# --- info and doctor ---


def test_info(data, model):
    report = report_of("info", model)
    assert report["classes"] == ["no", "yes"] and report["scaled"] and report["relative_gap"] <= 1e-4
    assert "not a whole jaxsvm model" in refusal("info", data)
    assert invoke("--version").stdout == f"jaxsvm {jaxsvm.__version__}\n"


def test_doctor(monkeypatch):
    report = report_of("doctor")
    assert report["jaxsvm"] == jaxsvm.__version__ and report["devices"]
    assert report["numpy"] == np.__version__ and report["host_memory"] > 2**28 and report["x64"] is True
    assert re.search(r"host memory +[0-9.]+ GiB", invoke("doctor").stdout)
    assert report["programs"] == "not stored" and "--warm is '0x2'" in refusal("doctor", "--warm", "0x2")
    monkeypatch.setattr(build, "device_memory", lambda: 10**6)
    with pytest.raises(jaxsvm.InputError, match="store is True, and the kernel values of 1,000 points take"):
        jaxsvm.gram(jaxsvm.kernels.Linear(), np.ones((1000, 2)), store=True)


# --- refusals ---

REFUSED = """
fit --gamma wide | gamma
fit --gamma -1 | gamma
fit --kernel linear --gamma wide | --gamma
fit --degree 3 | --degree
fit --kernel sigmoid --degree 2 | --degree
fit --kernel laplacian --coef0 0 | --coef0
fit --kernel polynomial --coef0 nan | coef0 is nan
fit --C -1 | C is -1
fit --C nan | C is nan
fit --tol 0 | tol is 0
several --tol nan | tol
fit --label none | label
fit --positive maybe | positive
path --C 1,two | --C
path --C 1,-2 | --C
path --C-min 0 | --C-min
path --C-min 10 --C-max 1 | --C-min
path --kernel linear --gamma 1 | --gamma
path --out model.npz | --folds
several --epsilon 0.1 | --epsilon
several --loss epsilon_insensitive --epsilon -1 | --epsilon
several --loss epsilon_insensitive | setosa
several --loss epsilon_insensitive --positive setosa | --positive
several --max-seconds 0 | --max-seconds
"""
"""The command, or a file of several classes for `fit`; its options; what the refusal names."""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_options_that_cannot_be_used(data, flowers, line):
    words, named = line.split(" | ")
    command, *options = shlex.split(words)
    files = [flowers[0] if command == "several" else data]
    assert named in refusal("fit" if command == "several" else command, *files, *options)


def test_bad_files(data, model, tmp_path):
    assert "missing.csv" in refusal("fit", tmp_path / "missing.csv")
    whole, cut = model.read_bytes(), tmp_path / "cut.npz"
    cut.write_bytes(whole[: len(whole) // 2])
    for command in (["fit", cut], ["predict", cut, data], ["info", cut]):
        assert "cut.npz" in refusal(*command)
    for name, content, command, said in (
        ("broken.csv", "1.0,2.0,0\nnan,2.0,1\n", "fit", "broken.csv, line 2"),
        ("broken.csv", "1.0,2.0,0\n1.0,2.0\n", "path", "broken.csv, line 2"),
        ("lone.csv", "1.0,2.0,0\n3.0,2.0,0\n", "fit", "one class"),
        ("data.xyz", "1,2,3\n", "fit", "data.xyz"),
        ("wide.csv", "1,2,3,4,0\n1,2,3,5,1\n", "predict", "wide.csv"),
    ):
        (tmp_path / name).write_text(content)
        arguments = [model] if command == "predict" else []
        assert said in refusal(command, *arguments, tmp_path / name)


def test_too_many_columns_are_refused_before_they_take_the_memory(data, tmp_path, monkeypatch):
    """Four lines with the index 2^31 - 2 died of memory."""
    file = tmp_path / "wide.svm"
    file.write_text(f"1 1:1\n-1 2:1\n1 1:2 {2**31 - 2}:1\n-1 2:3\n")
    said = refusal("fit", file)
    assert "4 samples and 2147483646 columns, of which 3 occur" in said and "Number the columns" in said
    file.write_text("1 1:1\n-1 2000:1\n" * 10)
    assert 2**28 < source.memory() < 2**50 and invoke("fit", file).exit_code == 0
    monkeypatch.setattr(source, "memory", lambda: 10**5)
    assert "2000 columns" in refusal("fit", file)
    monkeypatch.setattr(source, "memory", lambda: None)
    assert invoke("fit", file).exit_code == 0
    assert invoke("fit", data).exit_code == 0  # dense points are in memory already


def test_out_is_checked_before_the_work(data, model, tmp_path):
    missing, before = tmp_path / "missing.csv", data.read_bytes()  # were the data read first, the message would name it
    assert "--out" in refusal("fit", missing, "--out", tmp_path / "nowhere" / "model.npz")
    assert "--out" in refusal("path", missing, "--C", 1, "--out", tmp_path)
    assert "--out" in refusal("predict", model, missing, "--out", data / "below-a-file.csv")
    assert "--out" in refusal("fit", data, "--out", data)
    assert data.read_bytes() == before and os.listdir(tmp_path) == []


# --- pipes, full disks, processes ---


def test_pipes(data, model, tmp_path):
    """A named pipe was waited for without end; standard output that is a pipe could not be written to."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    for command in (["fit", pipe], ["fit", pipe, "--one-hot"]):
        assert "this is a pipe or a device" in refusal(*command)
    assert "-: there is no such file" in refusal("fit", "-")
    assert "/dev/stdout" in refusal("predict", model, data, "--out", "-")
    end, begin = os.pipe()
    assert invoke("predict", model, data, "--out", f"/dev/fd/{begin}").exit_code == 0
    os.close(begin)
    with open(end) as written:
        assert written.readline() == "label,decision\n" and len(written.readlines()) == 80


def process(*arguments, closed=False, before="", **options):
    environment = {"JAXSVM_CACHE": "off", "PYTHONPATH": f"{before}{ROOT}", **options.pop("env", {})}
    command = [sys.executable, "-m", "jaxsvm", *map(str, arguments)]
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *command] if closed else command
    options = {"stderr": subprocess.PIPE, "text": True, "timeout": 120, **options}
    return subprocess.run(command, check=False, env=os.environ | environment, **options)


def one_line(done):
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("jaxsvm: error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_report_that_cannot_be_written_is_an_error(data, model):
    with open("/dev/full", "w") as full:
        assert "No space left" in one_line(process("predict", "--json", model, data, stdout=full))
    assert "No space left" in refusal("fit", data, "--out", "/dev/full")
    assert "No space left" in refusal("predict", model, data, "--out", "/dev/full")


def test_a_reader_that_has_read_enough_is_no_failure():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = process("doctor", stdout=writer)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        os.close(writer)


@pytest.mark.thorough
def test_predictions_into_head(data, model):
    """Far more lines than a pipe holds."""
    many, lines = model.parent / "many.csv", data.read_text().splitlines()
    many.write_text("\n".join([lines[0], *lines[1:] * 500]) + "\n")
    command = f"{sys.executable} -m jaxsvm predict {model} {many} | head -n 1; exit ${{PIPESTATUS[0]}}"
    environment = os.environ | {"JAXSVM_CACHE": "off", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert done.returncode == 0 and done.stdout in ("no\n", "yes\n") and "40000 points, accuracy" in done.stderr


def test_version_without_extras(tmp_path):
    """Exit code 1 means "not certified"."""
    (tmp_path / "typer.py").write_text("raise ImportError('none', name='typer')")
    for word, code, said in (("--version", 0, jaxsvm.__version__), ("doctor", 2, "")):
        done = process(word, before=f"{tmp_path}{os.pathsep}", stdout=subprocess.PIPE)
        assert done.returncode == code and ("needs typer" in done.stderr) == bool(code) and said in done.stdout


def test_a_closed_stdout_is_told_before_the_work(tmp_path):
    missing = tmp_path / "missing.csv"  # were the data read first, the message would name it
    assert "stdout is closed" in one_line(process("fit", missing, closed=True))


@pytest.mark.slow
def test_an_encoding_that_lacks_a_character_is_an_error(points, tmp_path):
    x, y = points
    out, options = tmp_path / "model.npz", {"env": {"PYTHONIOENCODING": "ascii"}, "stdout": subprocess.DEVNULL}
    file = table(tmp_path / "few.csv", "a,b,c,kind", x, np.where(y == "yes", "j\u00e4", "n\u00f6"))
    report_of("fit", file, "--out", out)
    assert "ascii" in one_line(process("predict", out, file, **options))
    assert process("predict", out, file, "--out", tmp_path / "l.csv", **options).returncode == 0


@pytest.mark.thorough
def test_doctor_compiles_for_later_processes(tmp_path):
    done = process("doctor", "--warm", "40x3", "--json", env={"JAXSVM_CACHE": str(tmp_path)}, stdout=subprocess.PIPE)
    assert list(tmp_path.rglob("*.program")) and json.loads(done.stdout)["programs"].startswith(str(tmp_path))


@pytest.mark.thorough
def test_as_a_process(data, tmp_path):
    cache = {"JAXSVM_CACHE": str(tmp_path / "cache")}
    done = process("fit", data, "--scale", "standardise", "--json", env=cache, cwd=tmp_path, stdout=subprocess.PIPE)
    assert done.returncode == 0 and done.stderr == "" and json.loads(done.stdout)["certified"]
    assert any((tmp_path / "cache").iterdir())
