"""scikit-learn's own `svm/tests/test_svm.py` with our SVC, NuSVC, SVR, OneClassSVM and LinearSVC in place of theirs.

    python benchmarks/scikit_learn_tests.py [-k EXPRESSION]

Prints how many tests pass, and each that does not with what it said. Tests of estimators that we do not have
(LinearSVR, NuSVR, l1 penalties) run with scikit-learn's.
"""

import sys

import pytest
from sklearn import svm
from sklearn.svm.tests import test_svm

from jaxsvm import estimators

OURS = ("SVC", "NuSVC", "SVR", "OneClassSVM", "LinearSVC")


class Report:
    """Counts, and the last line of each failure."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("::")[-1]
        if report.when == "call" and report.passed:
            self.passed.append(name)
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed.append((name, " ".join(str(crash.message if crash else report.longrepr).split())[:240]))


def main() -> None:
    report = Report()
    for module in (svm, test_svm):
        for name in OURS:
            if hasattr(module, name):
                setattr(module, name, getattr(estimators, name))
    options = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-c",
        "/dev/null",
        "--no-summary",
    ]
    pytest.main([*options, test_svm.__file__, *sys.argv[1:]], plugins=[report])
    total = len(report.passed) + len(report.failed)
    print(f"\n{len(report.passed)} of {total} pass; {len(report.failed)} do not:")
    for name, message in report.failed:
        print(f"  {name}: {message}")


if __name__ == "__main__":
    main()
