"""The command on files as people have them: index columns, dates, categories, decimal commas, missing values."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import SVC
from test_cli import invoke, refusal, report_of

import jaxsvm
from jaxsvm import InputError, interchange
from jaxsvm.datasets.reading import Preparation
from jaxsvm.datasets.tables import Column
from jaxsvm.model_selection.cross_validation import Scores
from jaxsvm.models.libsvm import model_of


@pytest.fixture(autouse=True)
def in_32_bits():
    with jax.enable_x64(False):
        yield


@pytest.fixture(scope="module")
def frame():
    """Sixty rows with an index, a date, a text and holes; the label is in the middle."""
    rng, n = np.random.default_rng(0), 60
    y = np.repeat([0, 1], n // 2)
    table = pd.DataFrame({
        "when": pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d"),
        "age": rng.normal(40, 5, n) + 6 * y,
        "colour": np.where(rng.random(n) < 0.8, np.where(y == 1, "red", "blue"), "dark, green"),
        "bought": np.where(y == 1, "yes", "no"),
        "width": rng.normal(size=n) + 2 * y,
    })  # fmt: skip
    table.loc[[3, 40], "age"] = np.nan
    table.loc[5, "colour"] = None
    return table


OPTIONS = ("--drop", "0,when", "--label", "bought", "--scale", "standardize")
FILLED = (*OPTIONS, "--impute", "mean", "--one-hot")


def test_what_is_done_to_columns_is_done_to_new_files(frame, tmp_path):
    file, out, new = tmp_path / "train.csv", tmp_path / "model.npz", tmp_path / "new.csv"
    frame.to_csv(file)
    report = report_of("fit", file, *FILLED, "--out", out)
    assert report["d"] == 5 and report["label"] == "bought" and report["n"] == 60
    encoder = OneHotEncoder(handle_unknown="ignore")
    transformer = ColumnTransformer([
        ("numbers", SimpleImputer(), ["age", "width"]),
        ("texts", make_pipeline(SimpleImputer(strategy="most_frequent"), encoder), ["colour"]),
    ])  # fmt: skip
    columns = frame.assign(colour=frame.colour.astype(object).where(frame.colour.notna(), np.nan))
    theirs = np.asarray(transformer.fit_transform(columns))[:, [0, 2, 3, 4, 1]]
    loaded = jaxsvm.load_model(out)
    assert loaded.columns == ("age", "colour=blue", "colour=dark, green", "colour=red", "width")
    expected = np.asarray(jaxsvm.decision_function(loaded, theirs))
    found = report_of("predict", out, file)
    np.testing.assert_allclose(found["decision"], expected, atol=1e-4)
    assert found["accuracy"] == report["train_accuracy"] > 0.9 and any("bought" in note for note in found["notes"])

    changed = columns[["width", "colour", "age"]].copy()  # another order, no index, date or label
    changed.loc[[0, 7], "colour"] = "purple"
    changed.loc[9, "age"] = np.nan
    changed.to_csv(new, index=False)
    found = report_of("predict", out, new)
    expected = np.asarray(
        jaxsvm.decision_function(loaded, np.asarray(transformer.transform(changed))[:, [0, 2, 3, 4, 1]])
    )
    np.testing.assert_allclose(found["decision"], expected, atol=1e-4)
    assert any("'colour': 2 samples hold 'purple'" in note for note in found["notes"])
    with pytest.warns(UserWarning, match="'colour': 2 samples hold 'purple'"):
        of_frame = jaxsvm.decision_function(loaded, changed)
    np.testing.assert_allclose(of_frame, expected, atol=1e-4)
    assert jaxsvm.predict(loaded, frame).tolist() == report_of("predict", out, file)["labels"]
    for wrong, said in (
        (changed[["width", "colour"]], "lacks the column 'age'"),
        (changed.assign(id=0), "'id', which"),
    ):
        with pytest.raises(InputError, match=said):
            jaxsvm.predict(loaded, wrong)
    with pytest.warns(UserWarning, match="preparation of columns .* no part of what is written"):
        model_of(loaded)
    encoded = pd.DataFrame(theirs, columns=list(loaded.columns))  # points that somebody has prepared
    assert (jaxsvm.predict(loaded, encoded) == jaxsvm.predict(loaded, theirs)).all()
    changed.assign(id="a17").to_csv(new, index=False)
    said = refusal("predict", out, new)
    assert "--drop id" in said and "(--label)" in said and "(--unlabelled)" in said and "label=" not in said
    assert "--drop id" in refusal("predict", out, new, "--unlabelled")
    assert report_of("predict", out, new, "--drop", "id")["labels"] == found["labels"]
    changed["age"] = changed["age"].astype(object)
    changed.loc[4, "age"] = "old"
    changed.to_csv(new, index=False)
    assert "line 6: column 'age' is 'old'" in refusal("predict", out, new)
    described = json.loads(invoke("info", out, "--json").stdout)
    assert described["columns_of_the_file"] == ["age", "colour", "width"] and described["d"] == 5
    assert re.search(r"dropped +\(unnamed\), when", invoke("info", out).stdout)
    assert described["encoded"] == {"colour": ["blue", "dark, green", "red"]} and described["dropped"] == ["", "when"]
    report = report_of("path", file, *FILLED, "--C", "0.1,1", "--folds", 3)
    assert report["d"] == 5 and all(0.5 < row["cv_accuracy"] <= 1 for row in report["path"])


def test_truth_values_of_a_frame_are_the_texts_that_pandas_writes():
    preparation = Preparation((Column("member", "False", ("False", "True")), Column("age", 0.5)))
    frame = pd.DataFrame({"age": [1, 2], "member": [True, False]})
    data = preparation.of_frame("x_new", frame, None)
    assert data.x.tolist() == [[0, 1, 1], [1, 0, 2]] and len(data.notes) == 1
    with pytest.raises(InputError, match="x_new: cannot be read"):
        preparation.of_frame("x_new", frame.assign(age=[1, "old"]), None)


def test_decimal_commas_types_and_no_header(frame, tmp_path):
    file, points, out = tmp_path / "comma.csv", tmp_path / "points.csv", tmp_path / "model.npz"
    frame.to_csv(file, sep=";", decimal=",")
    frame.to_csv(points)
    report = report_of("fit", file, *FILLED, "--decimal", ",", "--out", out)
    assert report["primal"] == pytest.approx(report_of("fit", points, *FILLED)["primal"], rel=1e-12)
    found = report_of("predict", out, file)
    assert report_of("predict", out, points, "--decimal", ".")["decision"] == found["decision"]
    assert "decimal mark" in refusal("predict", out, points) and "--decimal" in refusal("fit", file, *FILLED)
    typed = frame.sample(frac=1, random_state=0).assign(when=pd.to_datetime(frame.when))
    typed["colour"] = typed["colour"].astype("category")
    typed.to_parquet(tmp_path / "typed.parquet")
    report = report_of("fit", tmp_path / "typed.parquet", "--drop", "when", *FILLED[2:], "--out", out)
    assert report["d"] == 5
    assert report_of("predict", out, tmp_path / "typed.parquet")["accuracy"] == report["train_accuracy"]
    frame.to_csv(file, header=False)
    options = ["--drop", "0,1", "--label", 4, "--impute", "mean", "--one-hot", "--out", out]
    report = report_of("fit", file, *options)
    assert report["n"] == 60 and report["d"] == 5
    assert report_of("predict", out, file)["accuracy"] == report["train_accuracy"]
    frame[["age", "colour", "width"]].to_csv(file, header=False, index=False)
    assert report_of("predict", out, file)["n"] == 60


def table(**columns):
    return pd.DataFrame(columns).to_csv(index=False)


N = 40
KIND, NUMBER = np.where(np.arange(N) % 2, "yes", "no"), np.arange(N) % 2 + 0.1 * (np.arange(N) % 5)
OTHER, HOLED = np.arange(N) % 3, np.where(np.arange(N) == 7, np.nan, NUMBER)
SVM = "".join(f"{i % 2} 1:{x:.2f} 3:{i % 3 + 1}\n" for i, x in enumerate(NUMBER))
PLAIN = table(a=NUMBER, b=OTHER, kind=KIND)
FRAME = pd.DataFrame({"a": NUMBER, "b": OTHER, "kind": KIND})


def parts(folder):
    folder.mkdir()
    for number, part in enumerate((FRAME[:20], FRAME[:0], FRAME[20:])):
        part.to_parquet(folder / f"part-{number}.parquet", index=False)


SIXTEEN = {  # what it is: the file, its content, options of `fit`, what `fit` says of it, new rows, what `predict` says
    "header and text labels": ("a.csv", PLAIN),
    "no header": ("a.csv", PLAIN.split("\n", 1)[1]),
    "semicolons, decimal commas": ("a.csv", FRAME.to_csv(index=False, sep=";", decimal=","), ("--decimal", ",")),
    "Parquet from pandas": ("a.parquet", FRAME[::-1].to_parquet),
    "svmlight": ("a.svm", SVM),
    "npz": ("a.npz", lambda path: np.savez(path, X=np.stack([NUMBER, OTHER], 1), y=KIND)),
    "missing in training": ("a.csv", table(a=HOLED, kind=KIND), (), "line 9: column 'a' is missing.*--impute mean"),
    "filled in in training": ("a.csv", table(a=HOLED, b=OTHER, kind=KIND), ("--impute", "mean")),
    "missing in new rows": ("a.csv", PLAIN, (), None, table(a=HOLED, b=OTHER), "line 9: column 'a' is missing"),
    "a text column": ("a.csv", table(c=KIND, y=OTHER % 2), (), "line 2: column 'c' is 'no'.*--one-hot.*--drop"),
    "64-bit labels": ("a.csv", table(a=NUMBER, id=2**53 + np.arange(N) % 2)),
    "three classes": ("a.csv", table(a=OTHER + 0.01 * NUMBER, kind=OTHER)),
    "regression": ("a.csv", table(a=NUMBER, y=3 * NUMBER), ("--loss", "epsilon_insensitive")),
    "a directory of parts": ("parts", parts),
    "a column of nulls": (
        "a.parquet", FRAME.assign(b=None)[["a", "b", "kind"]].to_parquet, (),
        "row 0 .*: column 'b' is missing.*--drop",
    ),
    "R's write.table": ("a.csv", '"a","kind"\n' + FRAME[["a", "kind"]].to_csv(header=False)),
    "an unseen feature": ("a.svm", SVM, (), None, "1 1:1.1 3:2\n0 1:0.2 3:1 7:1\n", "not seen"),
    "an empty file": ("a.csv", "", (), "a.csv: the file is empty"),
}  # fmt: skip


@pytest.mark.parametrize("what", SIXTEEN)
def test_plain_files_go_from_training_to_labels_in_two_commands(what, tmp_path):
    """`pytest -s -k plain_files` prints a line each."""
    name, content, options, refused, rows, said = (*SIXTEEN[what], *((), None, None, "")[len(SIXTEEN[what]) - 2 :])
    file, out, new = tmp_path / name, tmp_path / "model.npz", tmp_path / f"new{Path(name).suffix}"
    file.write_text(content) if isinstance(content, str) else content(file)
    new = file if rows is None else new
    if rows is not None:
        new.write_text(rows)
    if refused is not None:
        told = refusal("fit", file, *options)
        assert re.search(refused, told) and str(file) in told
    else:
        report = report_of("fit", file, *options, "--out", out)
        assert report["certified"] and report["n"] == N
        if "missing" in said:
            told = refusal("predict", out, new)
        else:
            found = report_of("predict", out, new)
            assert (score := found.get("accuracy", found.get("r2"))) > 0.9
            assert what != "64-bit labels" or set(found["labels"]) == {2**53, 2**53 + 1}
            told = f"certified, {found['n']} labels, score {score:.3g}; {'; '.join(found['notes'])}"
        assert re.search(said, told)
    print(f"{what:28}{told.replace(f'{tmp_path}/', '').strip()}")


def test_messages_name_the_column_and_what_to_do(frame, tmp_path):
    file = tmp_path / "train.csv"
    frame.to_csv(file)
    options, said = OPTIONS[:2], refusal("fit", file, "--label", "bought")
    assert "line 2: column 'when' is '2024-01-01'" in said and "--drop" in said
    unknown = refusal("fit", file, "--drop", "date")
    assert "drop is 'date'" in unknown and "when, age" in unknown
    assert "is left out" in refusal("fit", file, *options, "--drop", "bought", "--label", "bought")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], lines[4] + ",1", *lines[5:]]) + "\n")
    assert "line 5: Expected 6 columns, got 7" in refusal("fit", file, *FILLED)
    sparse = tmp_path / "a.svm"
    sparse.write_text("1 1:1\n-1 2:1\n")
    assert "only csv, parquet" in refusal("fit", sparse, "--drop", 0)
    for content, more, said in (
        (b"a,kind,\n1,x,\n2,y,\n", (), "column 2 of the header has no name; .*--drop 2|has no name: .*--drop 2"),
        (b"a,a,kind\n1,2,x\n2,3,y\n", ("--one-hot",), "the name 'a' of another one: .*--drop 1"),
        (b"a,kind\n1e300,x\n2,y\n3,y\n", (), "overflow: scale"),
        (b"a,kind\n", ("--impute", "mean"), "it has no samples"),
        (b"a,kind\n1,x\n2,x\n", (), "a.csv, labels in column 'kind': .*one class only, x"),
    ):
        (tmp_path / "a.csv").write_bytes(content)
        assert re.search(said, refusal("fit", tmp_path / "a.csv", *more))


def test_options_that_are_given_twice(frame, tmp_path):
    file = tmp_path / "train.csv"
    frame.to_csv(file)
    several = ("--drop", 0, "--drop", "when,colour", "--drop", "age", "--label", "bought")
    assert report_of("fit", file, *several)["d"] == 1
    result = invoke("fit", file, "--C", 1, *several, "--C", 2)
    assert result.exit_code == 2 and "--C is given twice" in result.stderr


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    rng = np.random.default_rng(1)
    y = np.repeat(["rare", "usual"], [10, 90])
    x = rng.normal(size=(100, 2)) + 1.0 * (y == "rare")[:, None]
    file = tmp_path_factory.mktemp("uneven") / "uneven.csv"
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": y}).to_csv(file, index=False)
    return file, x, y


@pytest.mark.parametrize("classes", [2, 3])
def test_balanced_classes(uneven, tmp_path, classes):
    file, x, y = uneven
    if classes == 3:
        (x, y), file = load_iris(return_X_y=True), tmp_path / "iris.npz"
        x, y = x[30:], y[30:]
        np.savez(file, X=x, y=y)
    out = tmp_path / "model.npz"
    options = ["fit", file, "--loss", "hinge", "--gamma", 0.5, "--tol", 1e-8, "--class-weight", "balanced"]
    assert report_of(*options, "--out", out)["class_weight"] == "balanced"
    theirs = SVC(gamma=0.5, class_weight="balanced", tol=1e-8, decision_function_shape="ovo").fit(x, y)
    np.testing.assert_allclose(report_of("predict", out, file)["decision"], theirs.decision_function(x), atol=1e-3)
    assert "--class-weight" in refusal("fit", file, "--class-weight", "1=3")
    assert "--class-weight" in refusal("fit", file, "--loss", "epsilon_insensitive", "--class-weight", "balanced")


@pytest.mark.parametrize("scale", ["none", "standardise"])
def test_a_coreset_is_trained_on_with_its_weights(uneven, tmp_path, scale):
    (file, points, _), small, out = uneven, tmp_path / "small.npz", tmp_path / "model.npz"
    made = report_of("coreset", file, "--size", 40, "--scale", scale, "--out", small, "--certify")
    options = ["fit", small, "--kernel", "linear", "--loss", "hinge", "--tol", 1e-6, "--out", out]
    report = report_of(*options)
    kept = jaxsvm.coresets.load_coreset(small)
    theirs = SVC(kernel="linear", tol=1e-8).fit(kept.x, kept.y, sample_weight=kept.weight)
    assert made["lower"] * (1 + made["excess"]) == pytest.approx(made["primal"]) and 0 < made["excess"] < 0.5
    assert kept.info["excess"] == made["excess"]
    assert report["classes"] == ["rare", "usual"] and report["total_weight"] == pytest.approx(kept.weight.sum())
    found = report_of("predict", out, file)
    if scale != "none":
        points = (points - kept.info["mean"]) / kept.info["scale"]
        assert "--scale" in refusal(*options, "--scale", "min-max")
    np.testing.assert_allclose(found["decision"], theirs.decision_function(points), atol=1e-3)
    assert found["accuracy"] > 0.7 and "coreset" in refusal("fit", small, "--loss", "epsilon_insensitive")


def test_libsvms_models_predict(tmp_path):
    """A model without the last column, in which no support vector has an entry."""
    x, y = load_iris(return_X_y=True)
    model, file, out = tmp_path / "iris.model", tmp_path / "iris.svm", tmp_path / "model.npz"
    np.savez(tmp_path / "iris.npz", X=x, y=y)
    report_of("fit", tmp_path / "iris.npz", "--loss", "hinge", "--out", out)
    jaxsvm.interchange.to_libsvm(jaxsvm.load_model(out), model)
    lines = [
        " ".join([str(label), *(f"{j}:{value!r}" for j, value in enumerate(row, 1))])
        for row, label in zip(x.tolist(), y, strict=True)
    ]
    file.write_text("\n".join([*lines, "0 1:5.1 6:1"]) + "\n")
    found, ours = report_of("predict", model, file), report_of("predict", out, tmp_path / "iris.npz")
    np.testing.assert_allclose(np.asarray(found["decision"])[:-1], ours["decision"], atol=1e-6)
    assert found["n"] == 151 and found["accuracy"] > 0.9
    assert report_of("predict", model, tmp_path / "iris.npz")["labels"] == ours["labels"]
    assert report_of("info", model)["classes"] == [0, 1, 2]
    model.write_text("svm_type c_svc\n")
    assert "not a whole LIBSVM model" in refusal("predict", model, file)


@pytest.mark.filterwarnings("ignore:The `probability` parameter")
def test_probabilities_of_a_model_are_written(uneven, tmp_path):
    file, x, y = uneven
    out, written = tmp_path / "svc.model", tmp_path / "labels.csv"
    fitted = jaxsvm.estimators.SVC(gamma=0.5, probability=True, random_state=0).fit(x, (y == "usual").astype(int))
    interchange.to_libsvm(fitted, out)
    p = np.asarray(report_of("predict", out, file, "--out", written)["probability"])
    np.testing.assert_allclose(p, fitted.predict_proba(x), atol=1e-6)
    assert written.read_text().startswith("label,decision,P(0),P(1)\n")


def test_a_path_whose_folds_had_no_time_says_that_there_is_no_model(uneven, tmp_path, monkeypatch):
    file, out = uneven[0], tmp_path / "model.npz"
    monkeypatch.setattr(
        jaxsvm.cli.training, "scores_of_folds", lambda _, Cs, k: Scores(np.array(Cs), np.full((k, 2), np.nan))
    )
    result = invoke("path", file, "--C", "1,2", "--folds", 3, "--out", out)
    assert result.exit_code == 1 and "no model is written" in result.stderr and not out.exists()


@pytest.mark.parametrize(
    ("factors", "said"), [((1, 1, 40), "'c' varies 40 times"), ((1, 9, 9), None), ((0.001, 1, 1.1), "'a'")]
)
def test_columns_of_unlike_spread_are_named(factors, said, tmp_path):
    columns = np.tile([[-1.0], [1.0]], (10, 3)) * factors
    pd.DataFrame(columns, columns=["a", "b", "c"]).assign(kind=["x", "y"] * 10).to_csv(tmp_path / "a.csv", index=False)
    note = report_of("fit", tmp_path / "a.csv", "--kernel", "linear")["note"]
    assert note is None if said is None else said in note


def test_whether_the_first_line_holds_names_can_be_said(tmp_path):
    """Years above the columns became a sample of a class of its own; at the prompt nothing could say what they are."""
    rng = np.random.default_rng(0)
    x, file = rng.normal(size=(60, 3)), tmp_path / "years.csv"
    frame = pd.DataFrame(np.column_stack([x, x[:, 0] > 0]), columns=[2019, 2020, 2021, 2022])
    frame.to_csv(file, index=False)
    assert "may be names of columns: say header=True (--header)" in refusal("fit", file)
    model = tmp_path / "model.npz"
    report = report_of("fit", file, "--header", "--label", "2022", "--out", model)
    assert report["n"] == 60 and report["d"] == 3
    assert report_of("predict", model, file, "--header", "--label", "2022")["accuracy"] > 0.9
    assert report_of("fit", file, "--no-header")["n"] == 61
