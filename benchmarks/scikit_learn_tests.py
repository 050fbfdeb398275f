"""scikit-learn's own `svm/tests/test_svm.py` with our SVC, NuSVC, SVR, NuSVR, OneClassSVM and LinearSVC.

    python benchmarks/scikit_learn_tests.py [-k EXPRESSION]

Prints how many tests pass, and a table of those that do not with the reason, or with what they said where there is
none. Tests of LinearSVR run with scikit-learn's.
"""

import sys

import pytest
from sklearn import svm
from sklearn.svm.tests import test_svm

from jaxsvm import estimators

OURS = ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM", "LinearSVC")
L1 = "no l1 penalty: it is another problem, without a kernel"
CRAMMER_SINGER = "no Crammer-Singer machine: one problem of all classes"
REASONS = {
    "test_svr_errors": "a kernel function that returns a wrong shape is refused by fit; theirs by predict",
    "test_tweak_params": "writes to `_dual_coef_`, a private name of theirs",
    "test_bad_input": "sparse points are predicted by a machine trained on dense ones; theirs refuses",
    "test_linearsvc_parameters[42-False-l2-hinge]": "the hinge is solved whatever `dual` says; theirs refuses",
    "test_linearsvc_parameters": L1,
    "test_linearsvc": L1,
    "test_linearsvc_crammer_singer": CRAMMER_SINGER,
    "test_crammer_singer_binary": CRAMMER_SINGER,
    "test_libsvm_convergence_warnings": "max_iter is looked at every 8 pair steps, and 6 samples are solved by then",
    "test_linear_svm_convergence_warnings": "max_iter is of passes that there are none of: Newton steps converge",
}
"""Why a test of theirs does not pass, by its name with or without parameters."""


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
    width = max((len(name) for name, _ in report.failed), default=0)
    for name, message in report.failed:
        reason = REASONS.get(name) or REASONS.get(name.split("[")[0]) or f"NO REASON KNOWN: {message}"
        print(f"  {name:{width}}  {reason}")


if __name__ == "__main__":
    main()
