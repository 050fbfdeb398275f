"""scikit-learn's `check_estimator` over 36 variations of parameters of our estimators.

    python benchmarks/estimator_checks.py [WORD ...]

Prints a line a variation: how many checks pass; then each check that fails, whether scikit-learn's own class with the
same parameters fails it too, and the reason, or what it said where there is none. WORDs choose variations; the word
`support` instead compares `n_support_` with scikit-learn's on 40 sets of 60 to 12,000 samples.
"""

import sys
import warnings
from typing import Any

import numpy as np
from sklearn import svm
from sklearn.datasets import make_classification
from sklearn.metrics.pairwise import linear_kernel
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

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
]
IN = "check_n_features_in"
DENSE, SPARSE = (f"check_sample_weight_equivalence_on_{form}_data" for form in ("dense", "sparse"))
SCALE = "gamma='scale' is of points without their weights, as in scikit-learn; and seven digits are asked for, not tol"
TOL = "seven digits are asked for, of answers that are certified to tol"
DRAWS = "samples are drawn: another number of them is another sequence"
OF_SETS = "a function of two sets is given whatever it likes: nobody counts its features"
NO_SQUARE = "gives points in place of a kernel matrix"
LIKELY = "the most probable class need not be the one that predict tells: sigmoids come of machines of other samples"
REASONS: dict[tuple[str, str], str] = {
    **{(name, check): SCALE for name in ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM") for check in (DENSE, SPARSE)},
    **{("SVCPath", check): SCALE for check in (DENSE, SPARSE)},
    **{(name, check): TOL for name in ("LinearSVC", "CoresetSVC") for check in (DENSE, SPARSE)},
    **{("SBPClassifier", check): DRAWS for check in (DENSE, SPARSE)},
    **{
        ("PegasosClassifier", check): f"the loss is a mean over samples, not weights; {DRAWS}"
        for check in (DENSE, SPARSE)
    },
    **{(name, check): OF_SETS for name in ("SVC", "SVR") for check in (IN, f"{IN}_after_fitting")},
    ("OneClassSVM", "check_outliers_fit_predict"): NO_SQUARE,
    ("OneClassSVM", "check_outliers_train"): NO_SQUARE,
    ("SVC", "check_classifiers_train"): LIKELY,
    ("NuSVC", "check_classifiers_train"): LIKELY,
    (
        "LinearSVC",
        "check_class_weight_classifiers",
    ): "no plane through the origin leaves 87 % of the points to one class",
    ("NuSVC", "check_class_weight_classifiers"): "with weights of 1,000 and .0001 a class no nu above 2e-7 is feasible",
}
"""Why a check of theirs does not pass, by the class and the check. `tests/test_estimator_checks.py` proves those of
weights and of nu."""
OVO = "with decision_function_shape='ovo' the largest column is no class"


def results(estimator: Any) -> dict[str, tuple[str, str]]:
    """The status of each check, and what it said."""
    with warnings.catch_warnings(action="ignore"):
        found = check_estimator(estimator, on_fail=None)
    return {one["check_name"]: (one["status"], " ".join(str(one["exception"]).split())[:160]) for one in found}


def fails_alike(estimator: Any, failed: list[str]) -> set[str]:
    """Which of these checks scikit-learn's estimator of the same name and parameters fails too."""
    theirs, plain = getattr(svm, type(estimator).__name__, None), type(estimator)().get_params()
    given = {name: value for name, value in estimator.get_params().items() if value != plain[name]}
    if theirs is None or not given.keys() <= theirs().get_params().keys():
        return set()
    alike = set()
    checks: Any = estimator_checks_generator(theirs(**given))
    for one, check in checks:
        name = getattr(check, "func", check).__name__
        if name in failed:
            try:
                with warnings.catch_warnings(action="ignore"):
                    check(one)
            except Exception:
                alike.add(name)
    return alike


def support(sets: int = 40) -> None:
    """Compare the support of each class with scikit-learn's: at most 2 %, and two samples, more or fewer."""
    worst, off = 0.0, 0
    for number, n in enumerate(np.geomspace(60, 12_000, sets).astype(int)):
        rng, k = np.random.default_rng(number), 2 + number % 2
        x, y = make_classification(n, 20, n_informative=8, n_classes=k, flip_y=0.1, random_state=number)
        x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(rng.choice([np.float32, np.float64]))
        options = {"C": float(rng.choice([0.1, 1, 10])), "kernel": str(rng.choice(["rbf", "rbf", "linear"]))}
        ours, theirs = (made(**options).fit(x, y).n_support_ for made in (estimators.SVC, svm.SVC))
        apart = np.abs(ours - theirs)
        worst, wrong = max(worst, float((apart / theirs).max())), bool((apart > np.maximum(2, 0.02 * theirs)).any())
        off += wrong
        print(n, x.dtype, options, ours, theirs, "OFF" if wrong else "", flush=True)
    print(f"{sets - off} of {sets} sets are within 2 %, or two samples; the largest difference is {worst:.2%}")


def main() -> None:
    if sys.argv[1:] == ["support"]:
        support()
        return
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
        theirs = fails_alike(estimator, failed)
        for check in failed:
            alike = ", as scikit-learn's own fails" if check in theirs else ""
            ovo = check == "check_classifiers_train" and getattr(estimator, "probability", False) is not True
            reason = (
                OVO if ovo else REASONS.get((type(estimator).__name__, check)) or f"NO REASON KNOWN: {ours[check][1]}"
            )
            print(f"    {check}{alike}: {reason}", flush=True)
    print(f"{whole} variations pass every check")


if __name__ == "__main__":
    main()
