"""The command: reports, exit codes, refusals, models that come back, Ctrl-C, the cache."""

import base64
import csv
import dataclasses
import html.parser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from matplotlib import image
from sklearn.datasets import load_iris
from sklearn.svm import SVC, SVR
from typer.testing import CliRunner

import jaxsvm
from jaxsvm import cli
from jaxsvm.cli import pairs, system
from jaxsvm.datasets import Scaling, load
from jaxsvm.gram import build
from jaxsvm.runtime.cache import keep_programs_as_set

ROOT = Path(__file__).resolve().parent.parent


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def refusal(*arguments):
    """The one line that a refusal says."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("jaxsvm: error: ")
    return result.stderr


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-1, 1, (40, 3)), rng.normal(1, 1, (40, 3))]) * [1, 10, 100]
    return x, np.repeat(["no", "yes"], 40)


@pytest.fixture(scope="module")
def data(points, tmp_path_factory):
    """A CSV file of 80 points with labels "no" and "yes"."""
    file = tmp_path_factory.mktemp("data") / "points.csv"
    lines = [",".join([*map(repr, row.tolist()), label]) for row, label in zip(*points, strict=True)]
    file.write_text("a,b,c,answer\n" + "\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "model.npz"
    result = invoke("fit", data, "--scale", "standardise", "--C", "2", "--gamma", "0.5", "--out", file)
    assert result.exit_code == 0, result.output
    return file


def test_fit_reports_a_certificate(data):
    result = invoke("fit", data, "--scale", "min-max", "--test-fraction", 0.25, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["status"] == "CONVERGED" and report["certified"] is True
    assert 0 <= report["relative_gap"] <= report["tol"] == 1e-4
    assert report["dual"] <= report["primal"]
    assert (report["n"], report["n_test"], report["d"]) == (60, 20, 3)
    assert report["classes"] == ["no", "yes"]
    assert 0.5 < report["test_accuracy"] <= 1 and 0.8 < report["train_accuracy"] <= 1
    assert report["solver"] == "auto"
    assert report["kernel"]["kernel"] == "RBF" and report["out"] is None


def test_the_table_says_the_same(data):
    result = invoke("fit", data, "--scale", "standardise")
    assert result.exit_code == 0 and "CONVERGED" in result.stdout and "relative gap" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("solver", ["pairwise", "away", "classic", "cvm"])
def test_solvers(data, solver):
    result = invoke("fit", data, "--scale", "standardise", "--solver", solver, "--tol", 1e-2, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["relative_gap"] <= 1e-2


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("linear", []),
        ("polynomial", ["--degree", 2, "--coef0", 0.5]),
        ("laplacian", ["--gamma", "median"]),
        ("sigmoid", ["--gamma", 0.01, "--coef0", 0]),
    ],
)
def test_kernels(data, kernel, options):
    result = invoke("fit", data, "--kernel", kernel, "--scale", "standardise", "--json", *options)
    report = json.loads(result.stdout)
    assert report["kernel"]["kernel"].lower() == kernel
    assert result.exit_code == (0 if report["certified"] else 1)
    assert kernel == "sigmoid" or report["certified"]


def test_predict_agrees_with_the_library(points, data, model, tmp_path):
    x, y = points
    scaling = Scaling.standardise(x)
    gram = jaxsvm.gram(jaxsvm.kernels.RBF(0.5), scaling(x))
    problem = jaxsvm.svm_problem(gram, np.where(y == "yes", 1.0, -1.0), 2.0)
    expected = jaxsvm.decision_function(jaxsvm.fit(problem), problem, scaling(x))

    result = invoke("predict", model, data, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    np.testing.assert_allclose(report["decision"], expected, rtol=1e-9, atol=1e-9)
    loaded = jaxsvm.load_model(model)
    labels = jaxsvm.predict(loaded, load(data).x).tolist()
    assert report["labels"] == labels
    assert report["accuracy"] == np.mean(np.asarray(labels) == y)

    plain = invoke("predict", model, data)
    assert plain.stdout.split() == labels and "accuracy" in plain.stderr
    written = tmp_path / "labels.csv"
    assert invoke("predict", model, data, "--out", written).exit_code == 0
    rows = written.read_text().splitlines()
    assert rows[0] == "label,decision" and [row.split(",")[0] for row in rows[1:]] == labels


def unlabelled_file(directory, kind, x):
    file = directory / f"new.{kind}"
    if kind == "npz":
        np.savez(file, X=x)
    elif kind == "parquet":
        pa.parquet.write_table(pa.table(dict(zip("abc", x.T, strict=True))), file)
    elif kind == "svm":  # its labels are of neither class
        lines = (" ".join(["7", *(f"{j}:{value!r}" for j, value in enumerate(row, 1))]) for row in x.tolist())
        file.write_text("\n".join(lines) + "\n")
    else:
        file.write_text("\n".join(",".join(map(repr, row)) for row in x.tolist()) + "\n")
    return file


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet", "svm"])
@pytest.mark.parametrize("said", [True, False])
def test_predict_without_labels(points, data, model, tmp_path, kind, said):
    if kind == "svm":  # sparse points cannot be shifted, so the model must not do it
        model = tmp_path / "unscaled.npz"
        assert invoke("fit", data, "--out", model).exit_code == 0
    expected = json.loads(invoke("predict", model, data, "--json").stdout)
    file = unlabelled_file(tmp_path, kind, points[0])
    options = ["--unlabelled"] if said else []
    result = invoke("predict", model, file, *options)
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == expected["labels"]
    unsaid = "accuracy unknown (DATA has other" if kind == "svm" else "no labels in DATA"
    assert result.stderr.count("\n") == 1 and ("accuracy" in result.stderr) == (kind == "svm" and not said)
    assert (unsaid in result.stderr) != said
    report = json.loads(invoke("predict", model, file, "--json", *options).stdout)
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
    report = json.loads(invoke("predict", model, file, "--json").stdout)
    assert report["accuracy"] > 0.9 and len(report["notes"]) == 2
    plain = invoke("predict", model, file)
    assert "columns are put in the order" in plain.stderr and "labels are in column 'answer'" in plain.stderr
    assert "has the column 'answer'" in refusal("predict", model, file, "--unlabelled")
    dropped = json.loads(invoke("predict", model, file, "--drop", "answer", "--unlabelled", "--json").stdout)
    assert dropped["decision"] == report["decision"]
    few = named_file(tmp_path, "c,answer", x[:, 2:], y)
    assert "lacks the columns 'a', 'b'" in refusal("predict", model, few)
    info = json.loads(invoke("info", model, "--json").stdout)
    assert info["columns"] == ["a", "b", "c"] and info["label"] == "answer" and info["index_base"] is None


def named_file(directory, header, x, y):
    file = directory / "few.csv"
    lines = [",".join([*map(repr, row), label]) for row, label in zip(x.tolist(), y, strict=True)]
    file.write_text("\n".join([header, *lines]) + "\n")
    return file


def test_pipes(data, model, tmp_path):
    """A named pipe was waited for without end; standard output that is a pipe could not be written to."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    assert "this is a pipe or a device" in refusal("fit", pipe)
    assert "this is a pipe or a device" in refusal("fit", "-")
    assert "this is a pipe or a device" in refusal("fit", pipe, "--one-hot")
    assert "/dev/stdout" in refusal("predict", model, data, "--out", "-")
    end, begin = os.pipe()
    assert invoke("predict", model, data, "--out", f"/dev/fd/{begin}").exit_code == 0
    os.close(begin)
    with open(end) as written:
        assert written.readline() == "label,decision\n" and len(written.readlines()) == 80


@pytest.mark.parametrize("header", ["answer,a,b,c\n", ""])
def test_predict_without_label_on_a_file_trained_with_it(points, tmp_path, header):
    x, y = points
    file, out = tmp_path / "first.csv", tmp_path / "model.npz"
    rows = zip(np.where(y == "yes", 1, 0).tolist(), x.tolist(), strict=True)
    file.write_text(header + "".join(",".join(map(repr, [label, *row])) + "\n" for label, row in rows))
    label = "answer" if header else "0"
    assert invoke("fit", file, "--label", label, "--scale", "standardise", "--out", out).exit_code == 0
    said = json.loads(invoke("predict", out, file, "--label", label, "--json").stdout)
    unsaid = json.loads(invoke("predict", out, file, "--json").stdout)
    assert unsaid["accuracy"] == said["accuracy"] > 0.9 and unsaid["decision"] == said["decision"]
    assert "labels are in column" in unsaid["notes"][0] and said["notes"] == []


def test_labels_with_commas_are_quoted(points, tmp_path):
    x, y = points
    file, out, written = tmp_path / "train.csv", tmp_path / "model.npz", tmp_path / "labels.csv"
    names = np.where(y == "yes", '"cat, ""small"""', "d\u00f6g")
    lines = (",".join([*map(repr, row), label]) for row, label in zip(x.tolist(), names, strict=True))
    file.write_text("a,b,c,kind\n" + "\n".join(lines) + "\n", encoding="utf-8")
    assert invoke("fit", file, "--scale", "standardise", "--out", out).exit_code == 0
    report = json.loads(invoke("predict", out, file, "--json").stdout)
    assert set(report["labels"]) == {'cat, "small"', "d\u00f6g"}
    assert invoke("predict", out, file, "--out", written).exit_code == 0
    with open(written, encoding="utf-8", newline="") as stored:
        rows = list(csv.reader(stored, strict=True))
    assert rows == [
        ["label", "decision"],
        *([a, repr(b)] for a, b in zip(report["labels"], report["decision"], strict=True)),
    ]
    assert load(written, label="label").y.tolist() == report["labels"]


def svmlight_file(path, x, y, base):
    rows = ([f"{j}:{value!r}" for j, value in enumerate(row, base) if value] for row in x.tolist())
    path.write_text("".join(" ".join([label, *row]) + "\n" for label, row in zip(y, rows, strict=True)))
    return path


def test_a_svmlight_file_whose_indices_start_elsewhere(tmp_path):
    """0.96 became 0.50."""
    rng = np.random.default_rng(0)
    x, signs = rng.normal(size=(60, 4)), np.repeat(["1", "-1"], 30)
    x[:, 1] += np.where(signs == "1", 3, -3)
    train, model = svmlight_file(tmp_path / "train.svm", x, signs, 0), tmp_path / "model.npz"
    assert invoke("fit", train, "--kernel", "linear", "--out", model).exit_code == 0
    assert json.loads(invoke("info", model, "--json").stdout)["index_base"] == 0
    x[:, [0, 3]] = 0  # neither end says where the indices start
    lacking = svmlight_file(tmp_path / "lacking.svm", x, signs, 0)
    report = json.loads(invoke("predict", model, lacking, "--json").stdout)
    assert report["accuracy"] > 0.95 and "count from 0, as in the training file" in report["notes"][0]
    one = svmlight_file(tmp_path / "one.svm", x, signs, 1)
    assert (
        json.loads(invoke("predict", model, one, "--index-base", 1, "--json").stdout)["decision"] == report["decision"]
    )
    other = tmp_path / "other.npz"
    assert invoke("fit", svmlight_file(tmp_path / "again.svm", x, signs, 1), "--out", other).exit_code == 0
    assert "--index-base 0" in refusal("predict", other, train)
    assert "--index-base is '2'" in refusal("fit", train, "--index-base", 2)
    assert "the index 0 occurs" in refusal("path", train, "--C", 1, "--index-base", 1)
    assert json.loads(invoke("info", one, "--index-base", 0, "--json").stdout)["d"] == 4


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """Iris with its names, as CSV, and the same rows as svmlight with other labels."""
    x, y = load_iris(return_X_y=True)
    directory = tmp_path_factory.mktemp("flowers")
    names = np.asarray(["setosa", "versicolor", "virginica"])[y]
    lines = [",".join([*map(repr, row), name]) for row, name in zip(x.tolist(), names, strict=True)]
    (directory / "iris.csv").write_text("a,b,c,d,kind\n" + "\n".join(lines) + "\n")
    svmlight_file(directory / "iris.svm", x, ["0"] * len(y), 1)
    return directory / "iris.csv", directory / "iris.svm", x, names


def test_several_classes(flowers, tmp_path):
    """All pairs, as scikit-learn's SVC; a model that shifts columns takes sparse rows."""
    file, sparse, x, names = flowers
    out, written = tmp_path / "model.npz", tmp_path / "labels.csv"
    arguments = ["fit", file, "--scale", "standardise", "--loss", "hinge", "--C", 10, "--tol", 1e-6]
    report = json.loads(invoke(*arguments, "--out", out, "--json").stdout)
    assert report["certified"] and report["machines"] == 3 and report["test_accuracy"] is None
    assert report["dual"] <= report["primal"] and report["relative_gap"] <= 1e-6
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    theirs = SVC(C=10, tol=1e-8, decision_function_shape="ovo").fit(scaled, names)
    assert report["support"] == len(theirs.support_)
    result = invoke("predict", out, file, "--json", "--out", written)
    found = json.loads(result.stdout)
    np.testing.assert_allclose(found["decision"], theirs.decision_function(scaled), atol=1e-3)
    assert found["labels"] == theirs.predict(scaled).tolist() and found["accuracy"] > 0.95
    assert written.read_text().startswith("label,setosa | versicolor,setosa | virginica,versicolor | virginica\n")
    dense = invoke("predict", out, sparse)
    assert dense.stdout.split() == found["labels"] and "accuracy unknown" in dense.stderr
    described = json.loads(invoke("info", out, "--json").stdout)
    assert described["classes"] == ["setosa", "versicolor", "virginica"] and described["d"] == 4


def test_several_classes_by_squared_hinges(flowers, tmp_path):
    """C counts as it does for two classes: a pair alone gives the same decision values."""
    file, _, x, names = flowers
    out, pair, alone = tmp_path / "model.npz", tmp_path / "pair.npz", tmp_path / "alone.npz"
    assert invoke("fit", file, "--gamma", 0.5, "--out", out).exit_code == 0
    np.savez(pair, X=x[names != "setosa"], y=names[names != "setosa"])
    assert invoke("fit", pair, "--gamma", 0.5, "--out", alone).exit_code == 0
    together = json.loads(invoke("predict", out, pair, "--json").stdout)["decision"]
    single = json.loads(invoke("predict", alone, pair, "--json").stdout)["decision"]
    np.testing.assert_allclose(-np.asarray(together)[:, 2], single, atol=2e-2)


def test_folds_choose(flowers, data, tmp_path):
    file, out = flowers[0], tmp_path / "model.npz"
    options = ["--C", "0.01,1,10000", "--folds", 3, "--scale", "standardise", "--loss", "hinge", "--json"]
    for source, count in ((file, 3), (data, 1)):
        report = json.loads(invoke("path", source, *options, "--out", out).stdout)
        scores = [row["cv_accuracy"] for row in report["path"]]
        assert report["chosen_C"] == report["path"][int(np.argmax(scores))]["C"] == 1
        assert all(0 <= row["cv_standard_error"] < 0.2 and row["certified"] for row in report["path"])
        assert report["note"] is None and np.shape(jaxsvm.load_model(out).bias) == ((count,) if count > 1 else ())
    cautious = json.loads(invoke("path", data, *options, "--one-standard-error").stdout)
    assert cautious["chosen_C"] <= 1
    table = invoke("path", data, *options[:-1])
    assert "cv accuracy" in table.stdout and "test" not in table.stdout.split("path")[-1].split("support")[1][:60]


def test_regression(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.sin(x[:, 0]) + 0.05 * rng.normal(size=60)
    file, out = tmp_path / "train.npz", tmp_path / "model.npz"
    np.savez(file, X=x, y=y)
    options = ["--loss", "epsilon_insensitive", "--gamma", 0.5, "--tol", 1e-6, "--json"]
    report = json.loads(invoke("fit", file, *options, "--epsilon", 0.2, "--C", 3, "--out", out).stdout)
    assert report["certified"] and report["epsilon"] == 0.2
    theirs = SVR(gamma=0.5, C=3, epsilon=0.2, tol=1e-8).fit(x, y)
    found = json.loads(invoke("predict", out, file, "--json").stdout)
    np.testing.assert_allclose(found["labels"], theirs.predict(x), atol=1e-4)
    assert found["r2"] == pytest.approx(theirs.score(x, y), abs=1e-4)
    path = json.loads(invoke("path", file, *options, "--C", "0.001,3", "--folds", 3, "--test-fraction", 0.2).stdout)
    assert path["chosen_C"] == 3 and path["path"][1]["cv_r2"] > 0.5 and path["path"][1]["test_r2"] > 0.5
    assert "too many to be classes" in refusal("fit", file) and "--loss epsilon_insensitive" in refusal("fit", file)


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("--loss", ["--loss", "log"]),
        ("--epsilon", ["--epsilon", 0.1]),
        ("--epsilon", ["--loss", "epsilon_insensitive", "--epsilon", -1]),
        ("--solver", ["--loss", "hinge", "--solver", "smo"]),
        ("--max-steps", ["--loss", "hinge", "--max-steps", 5]),
        ("setosa", ["--loss", "epsilon_insensitive"]),
        ("--positive", ["--loss", "epsilon_insensitive", "--positive", "setosa"]),
        ("--solver", ["--solver", "away"]),
        ("--max-seconds", ["--max-seconds", 0]),
    ],
)
def test_bad_options_of_several_classes(flowers, named, arguments):
    assert named in refusal("fit", flowers[0], *arguments)


class Page(html.parser.HTMLParser):
    """What a page shows: texts, pictures, and whatever it would fetch or run."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.images, self.foreign = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if tag == "img" and name == "src":
                assert value.startswith("data:image/png;base64,")
                self.images.append(base64.b64decode(value.split(",")[1]))
            elif name in ("src", "href") or name.startswith("on"):
                self.foreign.append(value)
        if tag in ("script", "link", "iframe"):
            self.foreign.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def test_a_report_is_one_page(flowers, data, tmp_path):
    file = tmp_path / "a <b> & c.html"
    arguments = ["--C", "0.01,1", "--scale", "standardise", "--loss", "hinge", "--report", file, "--json"]
    report = json.loads(invoke("path", flowers[0], *arguments, "--folds", 3).stdout)
    page = Page(file.read_text(encoding="utf-8"))
    assert page.foreign == [] and len(page.images) == 4
    assert all(picture.startswith(b"\x89PNG") and len(picture) > 5000 for picture in page.images)
    text = " ".join(page.texts)
    assert "Path over C: iris.csv" in text and "2 of 2 values of C are certified" in text and "versicolor" in text
    assert f"{report['path'][1]['cv_accuracy']:.4f}" in text and "cv accuracy" in text
    assert invoke("path", data, *arguments, "--test-fraction", 0.25).exit_code == 0
    assert "is optimistic" in file.read_text() and len(Page(file.read_text()).images) == 4
    assert "--report" in refusal("path", data, "--report", tmp_path)
    assert "--report" in refusal("path", data, "--report", data)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_the_report(data, tmp_path):
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    assert invoke("path", data, "--C", "0.01,1", "--folds", 3, "--report", file).exit_code == 0
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*browser, f"--screenshot={picture}", "--window-size=1000,1600", file.as_uri()],
        capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pixels = image.imread(picture)[..., :3]
    assert pixels.shape == (1600, 1000, 3)
    blue = (pixels[..., 2] > pixels[..., 0] + 0.3).sum()  # of the line of scores
    assert blue > 200 and 0.01 < (pixels.min(axis=2) < 0.5).mean() < 0.5


def test_bad_options_of_folds(flowers):
    assert "--folds" in refusal("path", flowers[0], "--folds", 1)
    assert "--folds" in refusal("path", flowers[0], "--one-standard-error")
    assert "--out" in refusal("path", flowers[0], "--out", "model.npz")


def test_where_the_labels_are_is_said(flowers, tmp_path):
    """The first column holds them in many files: a report that says which one was taken shows the mistake."""
    lines = [line.split(",") for line in flowers[0].read_text().splitlines()]
    first = tmp_path / "first.csv"
    first.write_text("\n".join(",".join([line[-1], *line[:-1]]) for line in lines) + "\n")
    assert f"--label {lines[0][-1]}" in refusal("fit", first)
    report = json.loads(invoke("fit", first, "--label", lines[0][-1], "--json").stdout)
    assert report["label"] == lines[0][-1] and report["certified"]


def test_columns_that_are_not_scaled_are_named(points, tmp_path):
    x, labels = points
    file = tmp_path / "uneven.csv"
    lines = [",".join([*map(repr, (row * [1, 1, 100]).tolist()), label]) for row, label in zip(x, labels, strict=True)]
    file.write_text("small,middle,large,answer\n" + "\n".join(lines) + "\n")
    note = json.loads(invoke("fit", file, "--json").stdout)["note"]
    assert "'large' varies " in note and "as 'small'" in note and "--scale standardise" in note
    assert json.loads(invoke("fit", file, "--scale", "min-max", "--json").stdout)["note"] is None


def test_missing_values_are_told(flowers, tmp_path):
    lines = flowers[0].read_text().splitlines()
    broken = tmp_path / "broken.csv"
    for value in ("", "NA"):
        fields = lines[3].split(",")
        fields[1] = value
        broken.write_text("\n".join([*lines[:3], ",".join(fields), *lines[4:]]) + "\n")
        assert "broken.csv, line 4" in refusal("fit", broken) and "column 1 (b) is missing" in refusal("fit", broken)


def test_too_many_columns_are_refused_before_they_take_the_memory(data, tmp_path, monkeypatch):
    """Four lines with the index 2^31 - 2 died of memory."""
    file = tmp_path / "wide.svm"
    file.write_text(f"1 1:1\n-1 2:1\n1 1:2 {2**31 - 2}:1\n-1 2:3\n")
    for command in (["fit", file], ["path", file, "--C", 1]):
        said = refusal(*command)
        assert "4 samples and 2147483646 columns, of which 3 occur" in said and "Number the columns" in said
    file.write_text("1 1:1\n-1 2000:1\n" * 10)
    assert invoke("fit", file).exit_code == 0
    monkeypatch.setattr(system, "memory", lambda: 10**5)
    assert "2000 columns" in refusal("fit", file)
    monkeypatch.setattr(system, "memory", lambda: None)
    assert invoke("fit", file).exit_code == 0
    assert invoke("fit", data).exit_code == 0  # dense points are in memory already


def test_memory_of_this_machine():
    assert 2**28 < system.memory() < 2**50


def test_float32(data, tmp_path):
    out = tmp_path / "model.npz"
    assert invoke("fit", data, "--scale", "standardise", "--dtype", "float32", "--out", out).exit_code == 0
    assert jaxsvm.load_model(out).coef.dtype == np.float32
    assert invoke("predict", out, data).exit_code == 0


def test_one_class_against_the_rest(tmp_path):
    rng = np.random.default_rng(1)
    y = np.repeat([3, 5, 8], 20)
    file, out = tmp_path / "three.npz", tmp_path / "model.npz"
    np.savez(file, X=rng.normal(size=(60, 2)) + 3 * (y == 8)[:, None], y=y)
    assert "positive" in refusal("fit", file, "--positive", 4)
    assert invoke("fit", file, "--positive", 8, "--out", out).exit_code == 0
    report = json.loads(invoke("predict", out, file, "--json").stdout)
    assert set(report["labels"]) == {"8", "not 8"} and report["accuracy"] > 0.9


def test_path(data, tmp_path):
    out = tmp_path / "best.npz"
    arguments = ["path", data, "--scale", "standardise", "--n-c", 4, "--test-fraction", 0.25]
    result = invoke(*arguments, "--out", out, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    np.testing.assert_allclose([row["C"] for row in report["path"]], np.geomspace(1e-2, 1e3, 4))
    assert all(row["certified"] and row["relative_gap"] <= 1e-4 for row in report["path"])
    best = max(row["test_accuracy"] for row in report["path"])
    chosen = next(row for row in report["path"] if row["C"] == report["chosen_C"])
    assert chosen["test_accuracy"] == best and report["not_reached"] == []
    assert len(jaxsvm.load_model(out).coef) == chosen["support"]
    plain = " ".join(invoke(*arguments).stdout.split())
    assert "CONVERGED" in plain and "is optimistic" in plain and "is optimistic" in report["note"]


def test_path_of_listed_values(data, tmp_path):
    out = tmp_path / "model.npz"
    result = invoke("path", data, "--scale", "standardise", "--C", "10,0.1,1", "--save-C", 1, "--out", out, "--json")
    report = json.loads(result.stdout)
    assert [row["C"] for row in report["path"]] == [10, 0.1, 1] and report["chosen_C"] == 1
    assert len(jaxsvm.load_model(out).coef) == report["path"][2]["support"]
    result = invoke("path", data, "--C", "0.1,1", "--test-fraction", 0.25, "--save-C", 1, "--json")
    assert json.loads(result.stdout)["note"] is None  # the accuracy has chosen nothing


@pytest.mark.parametrize("option", [("--max-steps", 0, "--solver", "smo"), ("--max-seconds", 0, "--tol", 1e-13)])
def test_what_is_not_certified_is_written_and_says_so(data, tmp_path, option):
    out = tmp_path / "model.npz"
    result = invoke("fit", data, *option, "--out", out, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["certified"] is False
    assert "not certified" in result.stderr
    assert jaxsvm.load_model(out).coef.size > 0


def test_coefficients_that_are_not_finite_make_no_model(data, tmp_path):
    out = tmp_path / "model.npz"
    for command in (["fit"], ["path", "--C", "1"]):
        arguments = [*command, data, "--kernel", "polynomial", "--degree", 50, "--dtype", "float32"]
        result = invoke(*arguments, "--out", out, "--json")
        assert result.exit_code == 1, result.stderr
        assert json.loads(result.stdout)["out"] is None and "no model is written" in result.stderr
        assert not out.exists()


def test_path_that_runs_out_of_time(data):
    result = invoke("path", data, "--n-c", 3, "--max-seconds", 0, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["path"] == [] and len(report["not_reached"]) == 3


def test_ctrl_c_saves_the_last_certified_point(data, tmp_path, monkeypatch):
    out = tmp_path / "model.npz"
    real = jaxsvm.fit

    def interrupted(problem, solver, **options):
        options["callback"] = lambda fitted: signal.raise_signal(signal.SIGINT)
        return real(problem, solver, **options)

    monkeypatch.setattr(jaxsvm, "fit", interrupted)
    result = invoke("fit", data, "--tol", 1e-13, "--solver", "classic", "--out", out, "--json")
    assert result.exit_code == 130
    report = json.loads(result.stdout)
    assert report["status"] == "INTERRUPTED" and np.isfinite(report["relative_gap"])
    assert len(jaxsvm.load_model(out).coef) == report["support"]


def test_ctrl_c_keeps_the_values_of_a_path_that_were_reached(data, tmp_path, monkeypatch):
    out = tmp_path / "model.npz"
    real = jaxsvm.solve_path

    def interrupted(*arguments, callback, **options):
        assert callback is None  # no terminal, no bar

        def took(place, fitted):
            if place == 1:
                signal.raise_signal(signal.SIGINT)

        return real(*arguments, callback=took, **options)

    monkeypatch.setattr(jaxsvm, "solve_path", interrupted)
    options = ("--solver", "smo", "--test-fraction", 0.25, "--out", out, "--json")
    result = invoke("path", data, "--C", "0.1,1,10", *options)
    assert result.exit_code == 130
    report = json.loads(result.stdout)
    assert [row["C"] for row in report["path"]] == [0.1, 1] and report["not_reached"] == [10]
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


def test_ctrl_c_keeps_the_values_of_a_path_of_several_classes_that_were_reached(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(60, 2)), np.repeat([0, 1, 2], 20)
    x[:, 0] += 3 * labels
    data, out, calls, real = tmp_path / "three.csv", tmp_path / "model.npz", [], pairs._trained
    np.savetxt(data, np.column_stack([x, labels]), delimiter=",", header="a,b,label", comments="", fmt="%g")

    def trained(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(pairs, "_trained", trained)
    options = ("--test-fraction", 0.25, "--out", out, "--json")
    result = invoke("path", data, "--label", "label", "--C", "0.1,1,10", *options)
    assert result.exit_code == 130
    report = json.loads(result.stdout)
    assert [row["C"] for row in report["path"]] == [0.1, 1] and report["not_reached"] == [10]
    assert jaxsvm.load_model(out).coef.size > 0


def test_info(data, model):
    report = json.loads(invoke("info", "--json").stdout)
    assert report["jaxsvm"] == jaxsvm.__version__ and report["devices"]
    report = json.loads(invoke("info", data, "--json").stdout)
    assert (report["n"], report["d"], report["labels"]) == (80, 3, {"no": 40, "yes": 40})
    report = json.loads(invoke("info", model, "--json").stdout)
    assert report["classes"] == ["no", "yes"] and report["scaled"] and report["relative_gap"] <= 1e-4
    assert "standardise" not in invoke("info", data).stdout


def test_doctor(monkeypatch):
    report = json.loads(invoke("doctor", "--json").stdout)
    assert report["numpy"] == np.__version__ and report["host_memory"] > 2**28 and report["x64"] is True
    small = json.loads(invoke("doctor", "--rows", 1000, "--json").stdout)
    assert small["kernel matrix"] == "may be stored" and small["RBF kernel, squared hinge"] == "FrankWolfe"
    assert small["bytes_of_kernel_matrix"] == 4 * 10**6 and small["note"] is None
    large = json.loads(invoke("doctor", "--rows", 10**10, "--features", 50, "--json").stdout)
    assert large["kernel matrix"] == "computed on demand" and "do not fit" in large["note"]
    text = invoke("doctor", "--rows", 300_000).stdout
    assert "on demand" in text and re.search(r"memory of rows +0.05588 GiB", text)
    monkeypatch.setattr(build, "device_memory", lambda: 10**6)
    with pytest.raises(jaxsvm.InputError, match="store is True, and the kernel values of 1,000 points take"):
        jaxsvm.gram(jaxsvm.kernels.Linear(), np.ones((1000, 2)), store=True)


def test_version():
    assert invoke("--version").stdout == f"jaxsvm {jaxsvm.__version__}\n"


def test_bad_files(data, model, tmp_path):
    assert "missing.csv" in refusal("fit", tmp_path / "missing.csv")
    whole = model.read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "cut.npz" in refusal("fit", cut)
    assert "cut.npz" in refusal("predict", cut, data)
    assert "cut.npz" in refusal("info", cut)
    broken = tmp_path / "broken.csv"
    broken.write_text("1.0,2.0,0\nnan,2.0,1\n")
    assert "broken.csv, line 2" in refusal("fit", broken)
    broken.write_text("1.0,2.0,0\n1.0,2.0\n")
    assert "broken.csv, line 2" in refusal("path", broken)
    lone = tmp_path / "lone.csv"
    lone.write_text("1.0,2.0,0\n3.0,2.0,0\n")
    assert "one class" in refusal("fit", lone)
    other = tmp_path / "data.xyz"
    other.write_text("1,2,3\n")
    assert "data.xyz" in refusal("fit", other) and "'.xyz'" in refusal("info", other)
    wide = tmp_path / "wide.csv"
    wide.write_text("1,2,3,4,0\n1,2,3,5,1\n")
    assert "wide.csv" in refusal("predict", model, wide)


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("--kernel", ["--kernel", "cubic"]),
        ("--solver", ["--solver", "newton"]),
        ("--scale", ["--scale", "log"]),
        ("--dtype", ["--dtype", "float16"]),
        ("gamma", ["--gamma", "wide"]),
        ("gamma", ["--gamma", "-1"]),
        ("gamma", ["--gamma", "inf"]),
        ("degree", ["--kernel", "polynomial", "--degree", "0"]),
        ("--gamma", ["--kernel", "linear", "--gamma", "wide"]),
        ("--gamma", ["--kernel", "linear", "--gamma", "scale"]),
        ("--degree", ["--degree", "3"]),
        ("--degree", ["--kernel", "sigmoid", "--degree", "2"]),
        ("--coef0", ["--kernel", "laplacian", "--coef0", "0"]),
        ("--coef0", ["--kernel", "polynomial", "--coef0", "nan"]),
        ("--C", ["--C", "-1"]),
        ("--C", ["--C", "nan"]),
        ("--tol", ["--tol", "0"]),
        ("--test-fraction", ["--test-fraction", "1"]),
        ("--test-fraction", ["--test-fraction", "0.001"]),
        ("--max-steps", ["--max-steps", "-1"]),
        ("--max-seconds", ["--max-seconds", "-1"]),
        ("--seed", ["--seed", "-1"]),
        ("label", ["--label", "none"]),
        ("positive", ["--positive", "maybe"]),
    ],
)
def test_bad_options(data, named, arguments):
    assert named in refusal("fit", data, *arguments)


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("--C ", ["--C", "1,two"]),
        ("--C ", ["--C", "1,-2"]),
        ("--C-min", ["--C-min", "0"]),
        ("--C-min", ["--C-min", "10", "--C-max", "1"]),
        ("--n-c", ["--n-c", "0"]),
        ("--gamma", ["--kernel", "linear", "--gamma", "1"]),
        ("--save-C", ["--C", "1,2", "--save-C", "3"]),
        ("--out", ["--out", "model.npz"]),  # which value's?
    ],
)
def test_bad_options_of_a_path(data, named, arguments):
    assert named in refusal("path", data, *arguments)


@pytest.mark.parametrize("option", ["--C", "--tol", "--seed"])
def test_what_is_no_number_at_all(data, option):
    result = invoke("fit", data, option, "abc")
    assert result.exit_code == 2 and option in result.stderr and "Traceback" not in result.stderr


def test_out_is_checked_before_the_work(data, model, tmp_path):
    missing = tmp_path / "missing.csv"  # were the data read first, the message would name it
    assert "--out" in refusal("fit", missing, "--out", tmp_path / "nowhere" / "model.npz")
    assert "--out" in refusal("path", missing, "--C", 1, "--out", tmp_path)
    assert "--out" in refusal("predict", model, missing, "--out", data / "below-a-file.csv")
    before = data.read_bytes()
    assert "--out" in refusal("fit", data, "--out", data)
    assert data.read_bytes() == before
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_file(data, model, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    before = model.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refusal("fit", data, "--out", model)
    assert model.read_bytes() == before
    assert os.listdir(model.parent) == [model.name]


def process(*arguments, encoding="utf-8", closed=False, **options):
    """The command as a process of its own, whose stdout is what the system gives it."""
    environment = os.environ | {"JAXSVM_CACHE": "off", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "jaxsvm", *map(str, arguments)]
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *command] if closed else command
    return subprocess.run(
        command, stderr=subprocess.PIPE, text=True, env=environment, check=False, timeout=120, **options
    )


def one_line(done):
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("jaxsvm: error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "--json"],
        *(pytest.param(rare, marks=pytest.mark.slow) for rare in (["info"], ["info", "--json"], ["predict"])),
    ],
    ids=" ".join,
)  # each is a process, which takes seconds to begin
def test_a_report_that_cannot_be_written_is_an_error(data, model, arguments):
    files = [model, data] if arguments[0] == "predict" else []
    with open("/dev/full", "w") as full:
        assert "No space left" in one_line(process(*arguments, *files, stdout=full))


@pytest.mark.skipif(os.name != "posix", reason="pipes and closed descriptors are POSIX's")
@pytest.mark.parametrize(
    "arguments", [["info"], pytest.param(["info", "--json"], marks=pytest.mark.slow)], ids=" ".join
)
def test_a_reader_that_has_read_enough_is_no_failure(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = process(*arguments, stdout=writer)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        os.close(writer)


@pytest.mark.skipif(os.name != "posix", reason="the shell is POSIX's")
def test_predictions_into_head(data, model):
    """Far more lines than a pipe holds."""
    many = model.parent / "many.csv"
    lines = data.read_text().splitlines()
    many.write_text("\n".join([lines[0], *lines[1:] * 500]) + "\n")
    environment = os.environ | {"JAXSVM_CACHE": "off", "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m jaxsvm predict {model} {many} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert done.returncode == 0 and done.stdout in ("no\n", "yes\n") and "40000 points, accuracy" in done.stderr


def test_version_without_extras(tmp_path):
    """Exit code 1 means "not certified"."""
    (tmp_path / "typer.py").write_text("raise ImportError('none', name='typer')")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    for arguments, code in ((["--version"], 0), (["info"], 2)):
        command = [sys.executable, "-m", "jaxsvm", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
        assert done.returncode == code and ("needs typer" in done.stderr) == bool(code)
    assert (
        jaxsvm.__version__
        in subprocess.run(
            [*command[:3], "--version"], capture_output=True, text=True, env=environment, check=True
        ).stdout
    )


def test_the_floor_of_float64_advises_no_float64(data):
    options = ["fit", data, "--scale", "standardize", "--kernel", "linear", "--tol", 1e-30]
    result = invoke(*options)
    assert result.exit_code == 1 and "STALLED" in result.stderr and "--dtype" not in result.stderr
    assert "--dtype float64" in invoke(*options, "--dtype", "float32").stderr


@pytest.mark.skipif(os.name != "posix", reason="pipes and closed descriptors are POSIX's")
def test_a_closed_stdout_is_told_before_the_work(tmp_path):
    missing = tmp_path / "missing.csv"  # were the data read first, the message would name it
    assert "stdout is closed" in one_line(process("fit", missing, closed=True))


@pytest.mark.slow
def test_an_encoding_that_lacks_a_character_is_an_error(points, tmp_path):
    x, y = points
    file, out = (
        named_file(tmp_path, "a,b,c,kind", x, np.where(y == "yes", "j\u00e4", "n\u00f6")),
        tmp_path / "model.npz",
    )
    assert invoke("fit", file, "--out", out).exit_code == 0
    with open(os.devnull, "w") as nothing:
        assert "ascii" in one_line(process("predict", out, file, encoding="ascii", stdout=nothing))
        assert (
            process("predict", out, file, "--out", tmp_path / "l.csv", encoding="ascii", stdout=nothing).returncode == 0
        )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_an_out_that_is_full_is_an_error(data, model):
    assert "No space left" in refusal("fit", data, "--out", "/dev/full")
    assert "No space left" in refusal("predict", model, data, "--out", "/dev/full")


@pytest.mark.parametrize(
    ("unset", "environment", "expected"),
    [
        ("on", {"JAXSVM_CACHE": "{}/mine"}, "{}/mine"),
        ("on", {"XDG_CACHE_HOME": "{}"}, "{}/jaxsvm/xla"),
        ("on", {"JAXSVM_CACHE": "off"}, None),
        ("off", {"XDG_CACHE_HOME": "{}"}, None),  # when the library is imported
        ("off", {"XDG_CACHE_HOME": "{}", "JAXSVM_CACHE": "on"}, "{}/jaxsvm/xla"),
    ],
)
def test_cache(monkeypatch, tmp_path, unset, environment, expected):
    settings = {}
    for name in ("JAXSVM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        monkeypatch.setattr(jax.config, "update", settings.__setitem__)
        keep_programs_as_set(unset)
    finally:
        monkeypatch.undo()
        jax.config.update("jax_compilation_cache_dir", before)
    assert settings.get("jax_compilation_cache_dir") == (None if expected is None else expected.format(tmp_path))


def test_as_a_process(data, tmp_path):
    command = [sys.executable, "-m", "jaxsvm", "fit", str(data), "--scale", "standardise", "--json"]
    environment = os.environ | {"JAXSVM_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["certified"] and done.stderr == ""
    assert any((tmp_path / "cache").iterdir())
