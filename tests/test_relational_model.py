"""The file of a model of a join scores where there is neither a database nor the join."""

import json

import numpy as np
import pytest

from jaxsvm import relational
from jaxsvm.errors import DataError, InputError

duckdb = pytest.importorskip("duckdb")


def tables(labels=("no", "yes")):
    rng = np.random.default_rng(0)
    k, x = rng.integers(0, 4, 60), np.where(np.arange(60) % 7 == 0, np.nan, rng.normal(size=60))
    kind = np.array(["it's", 'a "b"', None], object)[rng.integers(0, 3, 60)]
    y = np.array(labels, object if None in labels else None)[(np.nan_to_num(x) + k > 1.5).astype(int)]
    return {"f": {"k": k, "x": x, "kind": kind, "late": y}, "d": {"k": np.arange(3), "z": [0.5, -1.0, 2.0]}}


def test_a_file_scores_what_the_fit_scores(tmp_path):
    given = tables()
    join = relational.Join(given, ("f", "late"), missing="impute", optional=["d"])
    fit, path = relational.fit(join, 0.01, scale="standard"), tmp_path / "model.json"
    fit.save(path)
    kept, content = relational.load(path), json.loads(path.read_text(), parse_constant=pytest.fail)
    assert path.stat().st_size < 4_000 and content["format"] == "jaxsvm-relational-1"
    rows = {name: given["f"][name] for name in ("x", "kind")}
    rows["z"] = np.append(given["d"]["z"], np.nan)[given["f"]["k"]]
    np.testing.assert_array_equal(kept.decision_function(rows), fit.decision_function(rows))
    assert list(kept.predict(rows)) == list(fit.predict(rows)) and {*kept.predict(rows)} == {"no", "yes"}
    assert kept.to_sql({"f": "g"}, "s") == fit.to_sql({"f": "g"}, "s") and "LEFT JOIN" in kept.to_sql()
    db = duckdb.connect()
    db.execute("CREATE TABLE f AS SELECT 1 AS k, 0.5 AS x, 'it''s' AS kind; CREATE TABLE d AS SELECT 1 AS k, -1.0 AS z")
    found = db.sql(kept.to_sql()).fetchnumpy()["score"]
    np.testing.assert_allclose(found, fit.decision_function({"x": [0.5], "kind": ["it's"], "z": [-1.0]}), rtol=1e-12)


@pytest.mark.parametrize("labels", [(False, True), (3, 7), (0.5, 2.5)])
def test_labels_keep_their_types(tmp_path, labels):
    for positive in (None, labels[0]):
        join = relational.Join(tables(labels), ("f", "late"), missing="impute", positive=positive)
        fit = relational.fit(join, 0.1)
        fit.save(tmp_path / "model.json")
        kept = relational.load(tmp_path / "model.json")
        assert kept.classes.tolist() == fit.classes.tolist()
        assert [type(c) for c in kept.classes.tolist()] == [type(c) for c in fit.classes.tolist()]


def test_files_that_are_none_are_refused(tmp_path):
    fit = relational.fit(relational.Join(tables(), ("f", "late"), missing="impute"), 0.1)
    fit.save(tmp_path / "m")
    content = json.loads((tmp_path / "m").read_text())
    for wrong in (
        "", "[]", "null", json.dumps(content | {"format": "other"}), json.dumps({"format": "jaxsvm-relational-1"}),
        json.dumps(content | {"terms": [{}]}), json.dumps(content | {"schema": {}}),
        json.dumps(content | {"classes": ["a"]}), json.dumps(content | {"intercept": None}),
    ):  # fmt: skip
        (tmp_path / "wrong").write_text(wrong)
        with pytest.raises(DataError, match="wrong: no model of a join"):
            relational.load(tmp_path / "wrong")
    with pytest.raises(DataError, match="absent: no model of a join"):
        relational.load(tmp_path / "absent")
    db = duckdb.connect()
    db.execute("CREATE TABLE f AS SELECT CAST(i % 2 AS DECIMAL(3, 1)) AS y, i * 0.1 AS x FROM range(9) t(i)")
    fit = relational.fit(relational.from_database(db, ["f"], ("f", "y")), 0.1)
    with pytest.raises(InputError, match="which JSON does not hold"):
        fit.save(tmp_path / "m")
