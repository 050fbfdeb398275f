"""What is installed, and what is said where something is not."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from samples import svm

import jaxsvm
import jaxsvm.coresets
import jaxsvm.plots
import jaxsvm.relational
from jaxsvm.errors import EXTRAS, require_package
from jaxsvm.plots.pictures import axes_of

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OF_DEVELOPERS = {"pytest", "ruff", "basedpyright", "mkdocs", "mkdocs-material", "hypothesis", "ipykernel", "nbconvert"}


def packages(extra):
    names = set()
    for wanted in PROJECT["project"]["optional-dependencies"][extra]:
        name, inner = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", wanted).groups()
        names |= set().union(*map(packages, inner.split(","))) if name == "jaxsvm" else {name}
    return names


def test_all_is_for_users_and_dev_for_developers():
    extras = PROJECT["project"]["optional-dependencies"]
    assert not packages("all") & OF_DEVELOPERS and packages("dev") >= OF_DEVELOPERS
    users = set(extras) - {"all", "dev", "cuda", "notebooks", "docs", "bench", "core", "test"}
    assert packages("all") == set().union(*map(packages, users))
    assert packages("dev") == set().union(*map(packages, set(extras) - {"dev", "cuda"}))


@pytest.mark.parametrize("module", EXTRAS)
def test_an_error_names_an_extra_that_brings_the_package(module):
    package, extra = EXTRAS[module]
    assert package in packages(extra)


CALLS = {
    "sklearn.utils.sparsefuncs": lambda: jaxsvm.datasets.Scaling.standardise(scipy.sparse.csr_array(np.eye(2))),
    "onnx": lambda: jaxsvm.interchange.to_onnx(jaxsvm.compact(jaxsvm.fit(svm()), svm())),
    "matplotlib.figure": lambda: axes_of(None),
    "duckdb": lambda: jaxsvm.relational.from_database("a.db", ["a"], ("a", "y")),
    "dask": lambda: jaxsvm.designs.from_dask([]),
    "pyarrow.dataset": lambda: jaxsvm.datasets.load(__file__, format="parquet"),
}


@pytest.mark.parametrize("module", CALLS)
def test_a_missing_package_is_an_error_of_one_kind(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(jaxsvm.MissingPackageError, match=rf"pip install 'jaxsvm\[{EXTRAS[module.split('.')[0]][1]}\]'"):
        CALLS[module]()


def test_that_error_is_caught_as_either():
    assert issubclass(jaxsvm.MissingPackageError, ImportError) and issubclass(jaxsvm.MissingPackageError, ValueError)
    with pytest.raises(ImportError, match="drawing needs matplotlib, which cannot be imported"):
        require_package("matplotlib.no_such_module", "drawing")


def test_versions_agree():
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited and cited[1] == PROJECT["project"]["version"] == jaxsvm.__version__


def test_the_source_archive_holds_all_that_is_tracked():
    """It can build its own documentation, which runs `benchmarks/results_page.py`."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    there = {name.split("/")[0] for name in listed.stdout.split() if not name.startswith(".")}
    of_hatch = {"README.md", "LICENSE", "pyproject.toml"}  # always in it
    assert there - of_hatch == set(PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])


@pytest.mark.thorough
def test_public_names_are_found_where_they_are_looked_for():
    """In a new process: others have imported what stands here already."""
    code = """
import inspect, sys, jaxsvm
assert not {"jaxsvm.estimators", "jaxsvm.relational", "matplotlib", "sklearn"} & set(sys.modules)
assert set(dir(jaxsvm)) == {*jaxsvm.__all__, "estimators", "plots"}
assert all(hasattr(jaxsvm, name) for name in dir(jaxsvm))
import jaxsvm.interchange, jaxsvm.slack, jaxsvm.implicit as implicit
from jaxsvm.slack import equivalent_C
assert jaxsvm.slack.equivalent_C is equivalent_C and implicit is jaxsvm.implicit
assert jaxsvm.plots.path_scores and jaxsvm.interchange.to_onnx and sys.modules["jaxsvm.slack"] is jaxsvm.slack
for room in (jaxsvm.estimators, jaxsvm.kernels, jaxsvm.datasets, jaxsvm.screening):
    for name in room.__all__:
        try:
            getattr(jaxsvm, name)
        except AttributeError as error:
            assert f"`{room.__name__}.{name}` is meant" in str(error), error
assert not hasattr(jaxsvm, "no_such_name")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
