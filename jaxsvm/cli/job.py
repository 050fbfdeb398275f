"""What fit and path share: data made ready, the path solved with its progress, accuracy on the samples held out."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

import jaxsvm
from jaxsvm import kernels
from jaxsvm.cli.options import label_of, zero_based
from jaxsvm.cli.progress import progress_bar
from jaxsvm.cli.system import require_memory
from jaxsvm.datasets import Layout, Scaling, load, two_classes
from jaxsvm.errors import InputError
from jaxsvm.gamma import resolve_gamma
from jaxsvm.model import Model, compact, decision_function, is_positive
from jaxsvm.model_description import kernel_to_dict
from jaxsvm.result import Fit, Status


@dataclasses.dataclass(frozen=True)
class Job:
    """Data that is ready to be fitted: read, split, scaled, and its kernel matrix."""

    source: str
    gram: Any
    signs: np.ndarray
    test: tuple[Any, np.ndarray] | None  # points, scaled, and signs
    scaling: Scaling | None
    classes: tuple[Any, Any]
    kernel: kernels.Kernel
    shape: tuple[int, int]
    scale: str
    layout: Layout

    def model_of(self, fitted: Fit, problem: Any) -> Model:
        """A fit as a model that knows what was done to the columns, and how the file held them."""
        return compact(fitted, problem, scaling=self.scaling, classes=self.classes, layout=self.layout)

    def description(self) -> dict[str, Any]:
        """For the report."""
        return {
            "data": self.source,
            "n": self.shape[0],
            "d": self.shape[1],
            "n_test": 0 if self.test is None else len(self.test[1]),
            "classes": list(self.classes),
            "scale": self.scale,
            "kernel": kernel_to_dict(self.kernel),
        }


def prepare(
    data: str, label: str | None, index_base: str, positive: str | None, test_fraction: float, scale: str, seed: int,
    dtype: str, kernel: str, gamma: str | None, degree: int | None, coef0: float | None,
) -> Job:  # fmt: skip
    """Read, split and scale the data, and make its kernel matrix."""
    dataset = load(data, label=label_of(label), dtype=dtype, zero_based=zero_based(index_base))
    require_memory(data, dataset.x)
    signs, classes = two_classes(dataset.y, positive)
    signs = signs.astype(dtype)
    train, test = _split(signs, test_fraction, seed)
    x = dataset.x[train]
    constructors = {"standardise": Scaling.standardise, "min-max": Scaling.min_max}
    scaling = constructors[scale](x) if scale in constructors else None
    scaled = x if scaling is None else scaling(x)
    chosen = _kernel(kernel, gamma, degree, coef0, scaled)
    held_out = None
    if test is not None:
        held_out = (dataset.x[test] if scaling is None else scaling(dataset.x[test]), signs[test])
    n, d = x.shape
    gram = jaxsvm.gram(chosen, scaled)
    classes = tuple(classes.tolist())
    return Job(data, gram, signs[train], held_out, scaling, classes, chosen, (n, d), scale, dataset.layout)


def _split(signs: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Indices of the training and the test samples; all and None where nothing is held out."""
    if fraction == 0:
        return np.arange(len(signs)), None
    try:
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise InputError("--test-fraction needs scikit-learn: pip install 'jaxsvm[cli]'") from error
    try:
        train, test = train_test_split(np.arange(len(signs)), test_size=fraction, stratify=signs, random_state=seed)
    except ValueError as error:
        raise InputError(f"--test-fraction is {fraction}: {len(signs)} samples cannot be split so: {error}") from error
    return np.sort(train), np.sort(test)


def _kernel(name: str, gamma: str | None, degree: int | None, coef0: float | None, x: Any) -> kernels.Kernel:
    if name == "linear":
        return kernels.Linear()
    width = resolve_gamma("scale" if gamma is None else gamma, x)
    if not math.isfinite(width):
        raise InputError(f"gamma is {gamma!r}: a finite number is needed.")
    if name == "rbf":
        return kernels.RBF(width)
    if name == "laplacian":
        return kernels.Laplacian(width)
    if coef0 is not None and not math.isfinite(coef0):
        raise InputError(f"--coef0 is {coef0}: a finite number is needed.")
    constant = {"coef0": coef0} if coef0 is not None else {}
    if name == "sigmoid":
        return kernels.Sigmoid(width, **constant)
    return kernels.Polynomial(3 if degree is None else degree, width, **constant)


def solver_of(name: str, tol: float, max_steps: int) -> Any:
    """The solver of that name; None where the library chooses."""
    if name == "auto":
        return None
    if name == "cvm":
        return jaxsvm.CoreVectorMachine(tol=tol, max_steps=max_steps)
    return jaxsvm.FrankWolfe(variant=name, tol=tol, max_steps=max_steps)


def solve_path(
    job: Job, Cs: list[float], solver: Any, tol: float, seed: int, max_seconds: float | None
) -> dict[int, Fit]:
    """Fits of the values that were reached: all, but for Ctrl-C and --max-seconds."""
    with progress_bar() as bar:
        task = bar.add_task("path", total=len(Cs), note="")

        def took(place: int, fitted: Fit) -> None:
            bar.update(task, advance=1, note=f"C {Cs[place]:.4g}, gap {float(fitted.certificate.relative_gap):.2g}")

        problem, key = jaxsvm.svm_problem(job.gram, job.signs), jax.random.key(seed)
        options = {"solver": solver, "tol": tol, "key": key, "max_seconds": max_seconds}
        path = jaxsvm.solve_path(problem, Cs, callback=None if bar.disable else took, **options)
    fits = jax.tree.map(np.asarray, path.fits)  # parts of NumPy arrays are not compiled
    unreached = np.isinf(fits.certificate.relative_gap) & (fits.status.code == Status.INTERRUPTED)
    reached = np.flatnonzero(~unreached).tolist()
    return {place: jax.tree.map(lambda leaf, at=place: leaf[at], fits) for place in reached}


def accuracy_of(fitted: Fit, problem: Any, job: Job) -> float | None:
    """On the test samples, from the whole fit: a model's size changes with C, and would compile for every one."""
    if job.test is None:
        return None
    x, signs = job.test
    return float(np.mean(is_positive(np.asarray(decision_function(fitted, problem, x))) == (signs > 0)))


def choose(rows: dict[int, dict[str, Any]], fits: dict[int, Fit]) -> int:
    """The best test accuracy among the certified values, of equals the smallest C; among all if none is."""
    certified = [place for place, fitted in fits.items() if fitted.status == Status.CONVERGED]
    return min(certified or list(fits), key=lambda place: (-rows[place]["test_accuracy"], rows[place]["C"]))
