"""The command `jaxsvm`: fit, path, predict and info, thin over the library.

Reports go to stdout (`--json`: one JSON object and nothing else), progress and errors to stderr. Exit codes: 0
certified, 1 finished but not certified (a model is still written), 2 input that cannot be used, 130 after Ctrl-C (the
last
certified point is saved first).
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

import jaxsvm
from jaxsvm import kernels
from jaxsvm.datasets import Scaling, load, two_classes
from jaxsvm.errors import ConvergenceWarning, InputError
from jaxsvm.model import Model, compact, decision_function, load_model
from jaxsvm.result import Fit, Status, advice

try:
    import rich.progress
    import typer
    from rich.console import Console
    from rich.table import Column, Table
except ImportError as error:
    raise SystemExit(f"jaxsvm: error: the command needs {error.name}: pip install 'jaxsvm[cli]'") from error

CERTIFIED, NOT_CERTIFIED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
KERNELS = ("linear", "rbf", "polynomial", "laplacian", "sigmoid")
SOLVERS = ("smo", "pairwise", "away", "classic", "cvm")
SCALINGS = ("none", "standardise", "min-max")
DTYPES = ("float32", "float64")
ADVICE = {
    Status.STALLED: "The floor of the numbers is reached: use --dtype float64, a larger --tol or a smaller C.",
    Status.MAX_STEPS: "Raise --max-steps or loosen --tol.",
    Status.INTERRUPTED: "Give it more time or loosen --tol.",
}
"""What the command's options can do about a status; `jaxsvm.result.advice` speaks of the library's arguments."""

app = typer.Typer(
    name="jaxsvm",
    help="Support vector machines whose answers carry a proof of quality.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


# --- options
# -----------------------------------------------------------------------------------------------------------

Data = Annotated[str, typer.Argument(metavar="DATA", help="A svmlight, CSV, npz or Parquet file.", show_default=False)]
Kernel = Annotated[str, typer.Option("--kernel", metavar="|".join(KERNELS), help="The kernel.")]
Gamma = Annotated[str, typer.Option("--gamma", metavar="scale|median|paper|NUMBER", help="The kernel's width.")]
Degree = Annotated[int, typer.Option("--degree", help="Of the polynomial kernel.")]
Coef0 = Annotated[
    float | None, typer.Option("--coef0", help="Of polynomial (1 by default) and sigmoid (0).", show_default=False)
]
Tol = Annotated[float, typer.Option("--tol", help="The relative duality gap to be certified.")]
Solver = Annotated[str, typer.Option("--solver", metavar="|".join(SOLVERS), help="The solver.")]
MaxSteps = Annotated[int, typer.Option("--max-steps", help="Cap on the steps of one fit.")]
MaxSeconds = Annotated[
    float | None, typer.Option("--max-seconds", help="Stop after about so many seconds.", show_default=False)
]
TestFraction = Annotated[
    float, typer.Option("--test-fraction", help="Share of the samples held out (stratified) to measure accuracy.")
]
Scale = Annotated[
    str, typer.Option("--scale", metavar="|".join(SCALINGS), help="What to do to columns; kept in the model.")
]
Positive = Annotated[
    str | None, typer.Option("--positive", help="The label that is +1, against all others.", show_default=False)
]
Label = Annotated[
    str | None, typer.Option("--label", help="Column (name or index) or npz key of the labels.", show_default=False)
]
Seed = Annotated[int, typer.Option("--seed", help="Of the split and of the solver's draws.")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="|".join(DTYPES), help="What to compute in.")]
ModelOut = Annotated[
    str | None, typer.Option("--out", metavar="FILE", help="Where to write the model (.npz).", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Report as JSON on stdout, and nothing else there.")]


# --- commands
# ----------------------------------------------------------------------------------------------------------


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command whose bad input ends in one line and exit code 2."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the report says the status
                function(*args, **kwargs)
        except InputError as error:
            _complain(str(error))
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            _complain("interrupted before there was a result.")
            raise typer.Exit(INTERRUPTED) from None

    app.command(no_args_is_help=False)(guarded)
    return guarded


@_command
def fit(
    data: Data,
    kernel: Kernel = "rbf",
    gamma: Gamma = "scale",
    degree: Degree = 3,
    coef0: Coef0 = None,
    C: Annotated[float, typer.Option("--C", help="The penalty.")] = 1.0,
    tol: Tol = 1e-4,
    solver: Solver = "smo",
    max_steps: MaxSteps = 1_000_000,
    max_seconds: MaxSeconds = None,
    test_fraction: TestFraction = 0.0,
    scale: Scale = "none",
    positive: Positive = None,
    label: Label = None,
    seed: Seed = 0,
    dtype: Dtype = "float64",
    out: ModelOut = None,
    as_json: Json = False,
) -> None:
    """Fit one SVM and certify it."""
    _check_common(kernel, solver, scale, dtype, tol, test_fraction, max_steps, max_seconds, seed)
    if not (math.isfinite(C) and C > 0):
        raise InputError(f"--C is {C}: a positive number is needed.")
    _check_writable(out, data)
    with jax.enable_x64(dtype == "float64"), _Interrupts() as interrupts:
        job = _prepare(data, label, positive, test_fraction, scale, seed, dtype, kernel, gamma, degree, coef0)
        configured = _solver(solver, tol, max_steps)
        problem = jaxsvm.svm_problem(job.gram, job.signs, C)
        started = time.monotonic()
        with _gap_bar(tol) as callback:
            fitted = jaxsvm.fit(
                problem, configured, key=jax.random.key(seed), max_seconds=max_seconds, callback=callback
            )
        seconds = time.monotonic() - started
        interrupts.armed = False
        _save(out, compact(fitted, problem, scaling=job.scaling, classes=job.classes).save)
        row = _row(C, fitted, _accuracy(fitted, problem, job), seconds)
    _report(as_json, {"command": "fit", **job.description(), "solver": solver, "tol": tol, **row, "out": out})
    _finish([fitted], interrupts.seen)


@_command
def path(
    data: Data,
    kernel: Kernel = "rbf",
    gamma: Gamma = "scale",
    degree: Degree = 3,
    coef0: Coef0 = None,
    C: Annotated[
        str | None,
        typer.Option("--C", metavar="C1,C2,...", help="The penalties, instead of a grid.", show_default=False),
    ] = None,
    C_min: Annotated[float, typer.Option("--C-min", help="The least of the logarithmic grid.")] = 1e-2,
    C_max: Annotated[float, typer.Option("--C-max", help="The greatest.")] = 1e3,
    n_c: Annotated[int, typer.Option("--n-c", help="How many.")] = 16,
    save_C: Annotated[
        float | None,
        typer.Option("--save-C", help="Which penalty's model goes to --out; else the best by test accuracy."),
    ] = None,
    tol: Tol = 1e-4,
    solver: Solver = "smo",
    max_steps: MaxSteps = 1_000_000,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", help="Begin no further value of C after so many seconds.", show_default=False),
    ] = None,
    test_fraction: TestFraction = 0.0,
    scale: Scale = "none",
    positive: Positive = None,
    label: Label = None,
    seed: Seed = 0,
    dtype: Dtype = "float64",
    out: ModelOut = None,
    as_json: Json = False,
) -> None:
    """Fit one SVM for every C of a grid, each certified, from one kernel matrix."""
    _check_common(kernel, solver, scale, dtype, tol, test_fraction, max_steps, max_seconds, seed)
    Cs = _penalties(C, C_min, C_max, n_c)
    saved = _place_to_save(Cs, save_C, out, test_fraction)
    _check_writable(out, data)
    with jax.enable_x64(dtype == "float64"), _Interrupts() as interrupts:
        job = _prepare(data, label, positive, test_fraction, scale, seed, dtype, kernel, gamma, degree, coef0)
        started = time.monotonic()
        fits, seconds = _solve_path(job, Cs, _solver(solver, tol, max_steps), seed, max_seconds, interrupts)
        total = time.monotonic() - started
        interrupts.armed = False
        if not fits:
            raise KeyboardInterrupt
        problems = {place: jaxsvm.svm_problem(job.gram, job.signs, Cs[place]) for place in fits}
        scores = {place: _accuracy(fits[place], problems[place], job) for place in fits}
        rows = {place: _row(Cs[place], fits[place], scores[place], seconds[place]) for place in sorted(fits)}
        chosen = _choose(rows, fits) if saved is None and job.test is not None else saved
        if chosen is not None and chosen not in fits:
            _complain(f"C = {Cs[chosen]:g} was not reached{'' if out is None else ': no model is written'}.")
            chosen = out = None
        if out is not None and chosen is not None:
            _save(out, compact(fits[chosen], problems[chosen], scaling=job.scaling, classes=job.classes).save)
    report = {"command": "path", **job.description(), "solver": solver, "tol": tol}
    report |= {"path": list(rows.values()), "not_reached": [C for place, C in enumerate(Cs) if place not in fits]}
    report |= {"chosen_C": None if chosen is None else Cs[chosen], "seconds": total, "out": out}
    _report(as_json, report)
    _finish(list(fits.values()), interrupts.seen, complete=len(fits) == len(Cs))


@_command
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model that fit or path wrote.", show_default=False)],
    data: Data,
    label: Label = None,
    part: Annotated[str, typer.Option("--part", metavar="train|test", help="Which part of an npz file.")] = "train",
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Where to write label,decision as CSV.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict labels of new points, one a line; the labels in DATA give the accuracy."""
    _check_writable(out, data, model)
    with jax.enable_x64(True):  # the model's own dtype is kept, whatever it is
        loaded = load_model(model)
        dataset = load(data, label=_label(label), part=part, features=_features(loaded), dtype=loaded.coef.dtype)
        values = np.asarray(decision_function(loaded, dataset.x))
        labels = np.asarray(jaxsvm.predict(loaded, dataset.x)).tolist()
    truth = _truth(dataset.y, loaded.classes)
    accuracy = None if truth is None else float(np.mean((values >= 0) == truth))
    if out is not None:
        lines = ["label,decision", *(f"{name},{value!r}" for name, value in zip(labels, values.tolist(), strict=True))]
        _save(out, lambda target: Path(target).write_text("\n".join(lines) + "\n"))
    if as_json:
        report = {"command": "predict", "model": model, "data": data, "n": len(labels), "accuracy": accuracy}
        _print_json(report | {"labels": labels, "decision": values.tolist(), "out": out})
        return
    if out is None:
        sys.stdout.write("".join(f"{name}\n" for name in labels))
    known = "unknown (DATA has other labels)" if accuracy is None else f"{accuracy:.4f}"
    typer.echo(f"{len(labels)} points, accuracy {known}", err=True)


@_command
def info(
    file: Annotated[str | None, typer.Argument(metavar="[MODEL|DATA]", help="A model or a data set.")] = None,
    label: Label = None,
    as_json: Json = False,
) -> None:
    """What is in a model or a data set, or what this installation runs on."""
    if file is None:
        report = {
            "jaxsvm": jaxsvm.__version__,
            "jax": jax.__version__,
            "python": sys.version.split()[0],
            "backend": jax.default_backend(),
            "devices": [str(device) for device in jax.devices()],
            "compilation_cache": getattr(jax.config, "jax_compilation_cache_dir", None),
        }
    elif _is_model(file):
        with jax.enable_x64(True):
            report = _describe_model(file, load_model(file))
    else:
        report = _describe_data(file, load(file, label=_label(label)))
    _report(as_json, {"command": "info", **report})


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxsvm {jaxsvm.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """The entry point: a persistent compilation cache, then the command."""
    _use_cache()
    app()


# --- what fit and path share -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Job:
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

    def description(self) -> dict[str, Any]:
        """For the report."""
        return {
            "data": self.source,
            "n": self.shape[0],
            "d": self.shape[1],
            "n_test": 0 if self.test is None else len(self.test[1]),
            "classes": list(self.classes),
            "scale": self.scale,
            "kernel": kernels.kernel_to_dict(self.kernel),
        }


def _prepare(
    data: str, label: str | None, positive: str | None, test_fraction: float, scale: str, seed: int, dtype: str,
    kernel: str, gamma: str, degree: int, coef0: float | None,
) -> _Job:  # fmt: skip
    dataset = load(data, label=_label(label), dtype=dtype)
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
    return _Job(data, gram, signs[train], held_out, scaling, tuple(classes.tolist()), chosen, (n, d), scale)


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


def _kernel(name: str, gamma: str, degree: int, coef0: float | None, x: Any) -> kernels.Kernel:
    if name == "linear":
        return kernels.Linear()
    width = kernels.resolve_gamma(gamma, x)
    if not math.isfinite(width):
        raise InputError(f"gamma is {gamma!r}: a finite number is needed.")
    if name == "rbf":
        return kernels.RBF(width)
    if name == "laplacian":
        return kernels.Laplacian(width)
    if coef0 is not None and not math.isfinite(coef0):
        raise InputError(f"--coef0 is {coef0}: a finite number is needed.")
    constant = {"coef0": coef0} if coef0 is not None else {}
    return kernels.Polynomial(degree, width, **constant) if name == "polynomial" else kernels.Sigmoid(width, **constant)


def _solver(name: str, tol: float, max_steps: int) -> Any:
    if name == "cvm":
        return jaxsvm.CoreVectorMachine(tol=tol, max_steps=max_steps)
    return jaxsvm.FrankWolfe(variant=name, tol=tol, max_steps=max_steps)


class _OutOfTime(Exception):
    """Raised between two values of C."""


def _solve_path(
    job: _Job, Cs: list[float], solver: Any, seed: int, max_seconds: float | None, interrupts: "_Interrupts"
) -> tuple[dict[int, Fit], dict[int, float]]:
    """Fits and seconds of the values that were reached: all, but for Ctrl-C and --max-seconds."""
    fits: dict[int, Fit] = {}
    seconds: dict[int, float] = {}
    started = last = time.monotonic()
    with _bar() as bar, contextlib.suppress(_OutOfTime, KeyboardInterrupt):
        task = bar.add_task("path", total=len(Cs), note="")

        def took(place: int, fitted: Fit) -> None:
            nonlocal last
            now = time.monotonic()
            fits[place], seconds[place], last = fitted, now - last, now
            bar.update(task, advance=1, note=f"C {Cs[place]:.4g}, gap {float(fitted.certificate.relative_gap):.2g}")
            if interrupts.seen:
                raise KeyboardInterrupt
            if max_seconds is not None and now - started > max_seconds:
                raise _OutOfTime

        jaxsvm.solve_path(job.gram, job.signs, Cs, solver=solver, key=jax.random.key(seed), callback=took)
    return fits, seconds


def _accuracy(fitted: Fit, problem: Any, job: _Job) -> float | None:
    """On the test samples, from the whole fit: a model's size changes with C, and would compile for every one."""
    if job.test is None:
        return None
    x, signs = job.test
    return float(np.mean((np.asarray(decision_function(fitted, problem, x)) >= 0) == (signs > 0)))


def _choose(rows: dict[int, dict[str, Any]], fits: dict[int, Fit]) -> int:
    """The best test accuracy among the certified values, of equals the smallest C; among all if none is."""
    certified = [place for place, fitted in fits.items() if fitted.status == Status.CONVERGED]
    return min(certified or list(fits), key=lambda place: (-rows[place]["test_accuracy"], rows[place]["C"]))


# --- checking arguments ------------------------------------------------------------------------------------------


def _check_common(
    kernel: str, solver: str, scale: str, dtype: str, tol: float, test_fraction: float, max_steps: int,
    max_seconds: float | None, seed: int,
) -> None:  # fmt: skip
    choices = (("--kernel", kernel, KERNELS), ("--solver", solver, SOLVERS), ("--scale", scale, SCALINGS))
    for option, value, allowed in (*choices, ("--dtype", dtype, DTYPES)):
        if value not in allowed:
            raise InputError(f"{option} is {value!r}: one of {', '.join(allowed)} is needed.")
    if not (math.isfinite(tol) and tol > 0):
        raise InputError(f"--tol is {tol}: a positive relative gap is needed.")
    if not 0 <= test_fraction < 1:
        raise InputError(f"--test-fraction is {test_fraction}: at least 0 and less than 1 is needed.")
    if not 0 <= max_steps < 2**31:
        raise InputError(f"--max-steps is {max_steps}: from 0 to {2**31 - 1} is needed.")
    if max_seconds is not None and not max_seconds >= 0:
        raise InputError(f"--max-seconds is {max_seconds}: at least 0 is needed.")
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed is {seed}: from 0 to {2**32 - 1} is needed.")


def _penalties(listed: str | None, least: float, greatest: float, count: int) -> list[float]:
    if listed is not None:
        try:
            Cs = [float(text) for text in listed.split(",")]
        except ValueError:
            raise InputError(f"--C is {listed!r}: numbers with commas between are needed, such as 0.1,1,10.") from None
        if not all(math.isfinite(C) and C > 0 for C in Cs):
            raise InputError(f"--C is {listed!r}: every value must be positive.")
        return Cs
    for option, value in (("--C-min", least), ("--C-max", greatest)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{option} is {value}: a positive number is needed.")
    if least > greatest:
        raise InputError(f"--C-min is {least}: it must not exceed --C-max, {greatest}.")
    if count < 1:
        raise InputError(f"--n-c is {count}: at least 1 is needed.")
    return np.geomspace(least, greatest, count).tolist()


def _place_to_save(Cs: list[float], save_C: float | None, out: str | None, test_fraction: float) -> int | None:
    """Which value's model is to be written; None where test accuracy will say."""
    if save_C is not None:
        near = [place for place, C in enumerate(Cs) if math.isclose(C, save_C, rel_tol=1e-3)]
        if not near:
            raise InputError(f"--save-C is {save_C}: it is none of the values, {', '.join(f'{C:.6g}' for C in Cs)}.")
        return near[0]
    if len(Cs) == 1:
        return 0
    if out is not None and test_fraction == 0:
        raise InputError("--out writes one model: say which with --save-C, or hold out samples with --test-fraction.")
    return None


def _check_writable(out: str | None, *inputs: str) -> None:
    """Refuse, before any work, a path that could not be written, or that would overwrite an input."""
    if out is None:
        return
    if os.path.isdir(out):
        raise InputError(f"--out is {out!r}: this is a directory; name a file in it.")
    if os.path.exists(out):
        if any(os.path.exists(name) and os.path.samefile(out, name) for name in inputs):
            raise InputError(f"--out is {out!r}: this is an input file, which would be lost; choose another name.")
        if not os.access(out, os.W_OK):
            raise InputError(f"--out is {out!r}: the file cannot be written.")
        if not os.path.isfile(out):
            return  # a device or a pipe
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(out))):
            pass
    except OSError as error:
        raise InputError(f"--out is {out!r}: its directory cannot be written to: {error.strerror or error}.") from None


def _label(label: str | None) -> str | int | None:
    """A column's index where the text is an integer."""
    try:
        return None if label is None else int(label)
    except ValueError:
        return label


def _save(out: str | None, write: Callable[[str], Any]) -> None:
    """Write whole or not at all: to a neighbour first, which then takes the name."""
    if out is None:
        return
    target = os.path.realpath(out)
    try:
        if os.path.exists(target) and not os.path.isfile(target):
            write(target)
            return
        handle, neighbour = tempfile.mkstemp(dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}.")
        os.close(handle)
        try:
            write(neighbour)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(neighbour, 0o666 & ~mask)  # mkstemp's are for the owner alone
            os.replace(neighbour, target)
        except BaseException:
            os.unlink(neighbour)
            raise
    except OSError as error:
        raise InputError(f"--out is {out!r}: cannot be written: {error.strerror or error}.") from error


# --- predicting and describing -----------------------------------------------------------------------------------


def _features(model: Model) -> int | None:
    """How many columns new points must have, where the model knows it."""
    if isinstance(getattr(model.basis, "kernel", None), kernels.Precomputed):
        return None
    known = [model.scaling.offset] if model.scaling is not None else []
    known += [model.basis.shift] if hasattr(model.basis, "shift") else []
    return known[0].shape[0] if known else None


def _truth(y: np.ndarray, classes: tuple[Any, Any]) -> np.ndarray | None:
    """Which labels are the positive class's; None where some are of neither class."""
    positive = np.asarray([_same(label, classes[1]) for label in y.tolist()])
    if classes[0] == f"not {classes[1]}":
        return positive
    negative = np.asarray([_same(label, classes[0]) for label in y.tolist()])
    return positive if (positive | negative).all() else None


def _same(label: Any, other: Any) -> bool:
    """Whether two labels agree, as numbers or as text: files differ in how they write 1."""
    try:
        return float(label) == float(other)
    except ValueError:
        return str(label) == str(other)


def _is_model(file: str) -> bool:
    try:
        with np.load(file, allow_pickle=False) as stored:
            return "header" in stored.files
    except Exception:  # whatever else it is, `load` says what is wrong with it
        return False


def _describe_model(file: str, model: Model) -> dict[str, Any]:
    certificate = {name: float(value) for name, value in model.certificate._asdict().items()}
    return {
        "model": file,
        "classes": list(model.classes),
        "d": _features(model),
        "support": int(model.coef.shape[0]),
        "kernel": kernels.kernel_to_dict(model.basis.kernel) if hasattr(model.basis, "kernel") else None,
        "dtype": str(model.coef.dtype),
        "scaled": model.scaling is not None,
        **certificate,
    }


def _describe_data(file: str, dataset: Any) -> dict[str, Any]:
    present, counts = np.unique(dataset.y, return_counts=True)
    n, d = dataset.x.shape
    sparse = hasattr(dataset.x, "indptr")
    return {
        "data": file,
        "n": n,
        "d": d,
        "sparse": sparse,
        "density": float((dataset.x.nnz if sparse else np.count_nonzero(dataset.x)) / (n * d)),
        "dtype": str(dataset.x.dtype),
        "labels": {str(name): int(count) for name, count in zip(present.tolist()[:20], counts[:20], strict=True)},
        "n_labels": len(present),
    }


# --- reporting ---------------------------------------------------------------------------------------------------


def _row(C: float, fitted: Fit, accuracy: float | None, seconds: float) -> dict[str, Any]:
    return {
        "C": C,
        "status": fitted.status.name,
        "certified": bool(fitted.status == Status.CONVERGED),
        "primal": float(fitted.certificate.primal),
        "dual": float(fitted.certificate.dual),
        "relative_gap": float(fitted.certificate.relative_gap),
        "steps": int(fitted.steps),
        "kernel_evaluations": fitted.kernel_evaluations,
        "support": len(fitted.support),
        "test_accuracy": accuracy,
        "seconds": seconds,
    }


def _report(as_json: bool, report: dict[str, Any]) -> None:
    if as_json:
        _print_json(report)
        return
    console = Console(soft_wrap=True)
    facts = Table(show_header=False, box=None)
    for name, value in report.items():
        if name != "path" and value is not None and value != []:
            facts.add_row(name.replace("_", " "), _shown(value))
    console.print(facts)
    if "path" in report:
        formats = {"C": ".4g", "status": "", "relative_gap": ".1e", "primal": ".5g", "steps": "", "support": ""}
        formats |= {"test_accuracy": ".4f", "seconds": ".2g"}
        short = {"relative_gap": "gap", "test_accuracy": "accuracy"}
        table = Table(*(Column(short.get(name, name), justify="right", no_wrap=True) for name in formats), box=None)
        for row in report["path"]:
            cells = ("" if row[name] is None else format(row[name], style) for name, style in formats.items())
            table.add_row(*cells, style=None if row["certified"] else "red")
        console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(_shown(part) if name == "kernel" else f"{name} {_shown(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)


def _print_json(report: dict[str, Any]) -> None:
    json.dump(_strict(report), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def _strict(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _complain(message: str) -> None:
    typer.echo(f"jaxsvm: error: {' '.join(message.split())}", err=True)


def _finish(fits: list[Fit], interrupted: bool, complete: bool = True) -> None:
    """Say on stderr what is not certified, and leave with the exit code."""
    failed = [Status(int(fitted.status)) for fitted in fits if fitted.status != Status.CONVERGED]
    if failed:
        hint = f" {ADVICE.get(failed[0]) or advice(failed[0])}"
        typer.echo(f"jaxsvm: not certified: {', '.join(status.name for status in failed[:8])}.{hint}", err=True)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(CERTIFIED if complete and not failed else NOT_CERTIFIED)


def _bar() -> rich.progress.Progress:
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    return rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextlib.contextmanager
def _gap_bar(tol: float) -> Iterator[Callable[[Fit], None] | None]:
    """A callback that draws how far the gap has come, on a log scale; None without a terminal, which is faster."""
    with _bar() as bar:
        if bar.disable:
            yield None
            return
        task = bar.add_task("fit", total=None, note="")
        first: float | None = None

        def look(fitted: Fit) -> None:
            nonlocal first
            gap = float(fitted.certificate.relative_gap)
            if not (math.isfinite(gap) and gap > 0):
                return
            first = max(first or 0.0, gap, 2 * tol)
            done = math.log(first / gap) / math.log(first / tol)
            bar.update(
                task, total=1.0, completed=min(max(done, 0.0), 1.0), note=f"gap {gap:.2g}, step {int(fitted.steps)}"
            )

        yield look


# --- the process -------------------------------------------------------------------------------------------------


class _Interrupts:
    """Remembers whether Ctrl-C came, since the library turns it into a status that `max_seconds` has too.

    Disarmed, it only remembers: what was computed is saved before the command leaves.
    """

    seen = False
    armed = True

    def __enter__(self) -> "_Interrupts":
        self.before = None
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)

    def _note(self, number: int, frame: Any) -> None:
        del number, frame
        self.seen = True
        if self.armed:
            raise KeyboardInterrupt


def _use_cache() -> None:
    """Keep compiled programs between calls: `JAXSVM_CACHE` is another directory for them, or "off"."""
    wanted = os.environ.get("JAXSVM_CACHE")
    if wanted is not None and wanted.lower() in ("", "0", "off", "no", "none"):
        return
    if wanted is None and getattr(jax.config, "jax_compilation_cache_dir", None):
        return  # JAX's own setting
    directory = Path(wanted) if wanted is not None else _cache_home() / "jaxsvm" / "xla"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written to costs time, not the answer
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _cache_home() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
    return Path.home() / ".cache"


if __name__ == "__main__":
    main()
