"""scikit-learn's own tests of `sklearn.svm`, with our SVC, NuSVC, SVR, NuSVR, OneClassSVM and LinearSVC in its place.

    python benchmarks/scikit_learn_tests.py [-k EXPRESSION]

The classes are replaced before `test_svm.py`, `test_sparse.py` and `test_bounds.py` are imported, so that marks,
default arguments and names imported from `sklearn.svm` are ours too. It prints, for each file, how many tests pass and
how many of those called `fit` of a class of ours, and a table of those that do not pass with the reason, or with what
they said where there is none. LinearSVR, and what other modules of scikit-learn use within, stay scikit-learn's.
"""

import functools
import importlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sklearn.svm
import sklearn.svm.tests

from jaxsvm import estimators

OURS = ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM", "LinearSVC")
FILES = ("test_svm", "test_sparse", "test_bounds")
L1 = "no l1 penalty: it is another problem, without a kernel"
CRAMMER_SINGER = "no Crammer-Singer machine: one problem of all classes"
REASONS = {
    "test_svr_errors": "a kernel function that returns a wrong shape is refused by fit; theirs by predict",
    "test_tweak_params": "writes to `_dual_coef_`, a private name of theirs",
    "test_svc_nonfinite_params": "points whose squared distances overflow are refused in words of their own",
    "test_custom_kernel_not_array_input[SVR]": "scores of two kernels are compared to the last bit",
    "test_bad_input": "sparse points are predicted by a machine trained on dense ones; theirs refuses",
    "test_linearsvc_parameters[42-False-l2-hinge]": "the hinge is solved whatever `dual` says; theirs refuses",
    "test_linearsvc_parameters": L1,
    "test_linearsvc": L1,
    "test_dense_liblinear_intercept_handling": L1,
    "test_sparse_liblinear_intercept_handling": L1,
    "test_linearsvm_liblinear_sample_weight[42-LinearSVC-params0]": L1,
    "test_l1_min_c": L1,
    "test_linearsvc_crammer_singer": CRAMMER_SINGER,
    "test_crammer_singer_binary": CRAMMER_SINGER,
    "test_linear_svm_convergence_warnings": "max_iter is of passes that there are none of: Newton steps converge",
    "test_svc": "(2, 2, 2) is half way between two classes: its decision is a rounding, another one of sparse points",
    "test_sparse_oneclasssvm": "points with the origin in their midst: no answer, it warns; support is rounding",
}
"""Why a test of theirs does not pass, by its name with or without parameters."""


class Report:
    """What passed, what passed with a fit of ours, and the last line of each failure."""

    def __init__(self) -> None:
        self.passed: dict[str, list[str]] = defaultdict(list)
        self.ours: dict[str, list[str]] = defaultdict(list)
        self.failed: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.fits = 0

    def counted(self, cls: Any) -> None:
        """Have `fit` of a class counted."""
        fit = cls.fit

        @functools.wraps(fit)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.fits += 1
            return fit(*args, **kwargs)

        cls.fit = counting

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        before = self.fits
        result = yield  # a test that fails does not come back here
        if self.fits > before:
            self.ours[_file_of(item.nodeid)].append(item.nodeid)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, name = _file_of(report.nodeid), report.nodeid.split("::")[-1]
        if report.when == "call" and report.passed:
            self.passed[file].append(name)
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(crash.message if crash else report.longrepr)
            self.failed[file].append((name, " ".join(message.split())[:240]))


def _file_of(nodeid: str) -> str:
    return Path(nodeid.split("::", maxsplit=1)[0]).stem


def main() -> None:
    report = Report()
    for name in OURS:
        ours = getattr(estimators, name)
        report.counted(ours)
        setattr(sklearn.svm, name, ours)
    modules = [importlib.import_module(f"sklearn.svm.tests.{name}") for name in FILES]
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", "/dev/null"]
    pytest.main([*options, "--no-summary", *(str(module.__file__) for module in modules), *sys.argv[1:]], [report])
    print()
    for file in FILES:
        failed = report.failed[file]
        passed, ours = len(report.passed[file]), len(report.ours[file])
        print(f"{file}.py: {passed} of {passed + len(failed)} pass, {ours} of these by a fit of ours; the others:")
        width = max((len(name) for name, _ in failed), default=0)
        for name, message in failed:
            reason = REASONS.get(name) or REASONS.get(name.split("[")[0]) or f"NO REASON KNOWN: {message}"
            print(f"  {name:{width}}  {reason}")


if __name__ == "__main__":
    main()
