"""scikit-learn's `check_estimator` over 36 variations of parameters of our estimators.

    python benchmarks/estimator_checks.py [WORD ...]

Prints a line a variation: how many checks pass; then each check that fails, whether scikit-learn's own class with the
same parameters fails it too, and the reason, or what it said where there is none. WORDs choose variations.
"""

import sys
import warnings
from typing import Any

from sklearn import svm
from sklearn.metrics.pairwise import linear_kernel
from sklearn.utils.estimator_checks import check_estimator

from jaxsvm import estimators, kernels

VARIATIONS = [
    estimators.SVC(),
    estimators.SVC(kernel="linear"),
    estimators.SVC(kernel="poly", coef0=1.0),
    estimators.SVC(kernel="sigmoid", gamma=0.01),
    estimators.SVC(kernel="laplacian"),
    estimators.SVC(kernel="precomputed"),
    estimators.SVC(kernel=linear_kernel),
    estimators.SVC(kernel=kernels.RBF(0.1)),
    estimators.SVC(multi_class="ovr"),
    estimators.SVC(multi_class="ddag"),
    estimators.SVC(loss="squared_hinge"),
    estimators.SVC(bias="regularized"),
    estimators.SVC(class_weight="balanced"),
    estimators.SVC(decision_function_shape="ovo"),
    estimators.SVC(break_ties=True),
    estimators.SVC(max_iter=100),
    estimators.SVC(probability=True),
    estimators.SVC(probability=True, multi_class="ovr"),
    estimators.SVC(probability=True, loss="squared_hinge"),
    estimators.SVC(probability=True, kernel=linear_kernel),
    estimators.NuSVC(nu=0.2),
    estimators.NuSVC(nu=0.2, probability=True),
    estimators.SVR(),
    estimators.SVR(kernel=linear_kernel),
    estimators.NuSVR(),
    estimators.OneClassSVM(),
    estimators.OneClassSVM(kernel="precomputed"),
    estimators.LinearSVC(),
    estimators.LinearSVC(loss="hinge", fit_intercept=False),
    estimators.SVCPath(Cs=3, cv=2),
    estimators.SVCPath(Cs=3, cv=2, loss="squared_hinge"),
    estimators.SBPClassifier(steps=200),
    estimators.PegasosClassifier(),
    estimators.CoresetSVC(),
    estimators.NystroemSVC(n_components=30),
    estimators.NystroemSVC(n_components=30, method="fourier", loss="hinge"),
]
EQUIVALENCE = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")
SEVEN_DIGITS = "asks for seven digits of answers that are certified to tol"
REASONS: dict[tuple[str, str], str] = {
    **{(name, check): SEVEN_DIGITS for check in EQUIVALENCE for name in ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM")},
}
"""Why a check of theirs does not pass, by the class and the check. `tests/test_estimator_checks.py` proves each."""


def results(estimator: Any) -> dict[str, tuple[str, str]]:
    """The status of each check, and what it said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator, on_fail=None)
    return {one["check_name"]: (one["status"], " ".join(str(one["exception"]).split())[:160]) for one in found}


def theirs_of(estimator: Any) -> Any:
    """scikit-learn's estimator of the same name and parameters, or None."""
    theirs = getattr(svm, type(estimator).__name__, None)
    if theirs is None:
        return None
    known = theirs().get_params()
    if "max_iter" in known and not hasattr(estimator, "max_iter"):
        return None
    given = {name: value for name, value in estimator.get_params().items() if value != type(estimator)().get_params()[name]}
    try:
        return theirs(**given)
    except TypeError:
        return None


def main() -> None:
    whole = 0
    for estimator in VARIATIONS:
        name = " ".join(str(estimator).split())
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        ours = results(estimator)
        failed = [check for check, (status, _) in ours.items() if status == "failed"]
        whole += not failed
        passed = sum(status == "passed" for status, _ in ours.values())
        print(f"{name}: {passed} of {passed + len(failed)} pass", flush=True)
        theirs = results(theirs_of(estimator)) if failed and theirs_of(estimator) is not None else {}
        for check in failed:
            alike = ", as scikit-learn's own fails" if theirs.get(check, ("",))[0] == "failed" else ""
            reason = REASONS.get((type(estimator).__name__, check)) or f"NO REASON KNOWN: {ours[check][1]}"
            print(f"    {check}{alike}: {reason}", flush=True)
    print(f"{whole} variations pass every check")


if __name__ == "__main__":
    main()
