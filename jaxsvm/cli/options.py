"""The options that several commands share, and the checks of their values."""

import dataclasses
import math
from typing import Annotated, Any

import numpy as np
import typer

from jaxsvm.errors import InputError

KERNEL_OPTIONS = {
    "linear": (),
    "rbf": ("gamma",),
    "polynomial": ("gamma", "degree", "coef0"),
    "laplacian": ("gamma",),
    "sigmoid": ("gamma", "coef0"),
}
"""The kernels, and the options that each of them uses."""

SOLVERS = ("smo", "pairwise", "away", "classic", "cvm")
PATH_SOLVERS = ("auto", *SOLVERS)
SCALINGS = ("none", "standardise", "min-max")
LOSSES = ("squared_hinge", "hinge", "epsilon_insensitive")
DTYPES = ("float32", "float64")


def option(flags: str, help: str, metavar: Any = None) -> Any:  # noqa: A002
    """Declare an option for `Annotated`.

    Args:
        flags: Its names, separated by commas.
        help: Its line of `--help`.
        metavar: The name of its value; a tuple lists the choices.
    """
    metavar = "|".join(metavar) if isinstance(metavar, tuple) else metavar
    return typer.Option(*flags.split(","), help=help, metavar=metavar)


Data = Annotated[str, typer.Argument(metavar="DATA", help="A svmlight, CSV, npz or Parquet file.")]
Tol = Annotated[float, option("--tol", "Relative duality gap to certify.")]
MaxSeconds = Annotated[float | None, option("--max-seconds", "Stop after about this many seconds.")]
Positive = Annotated[str | None, option("--positive", "Label of the class +1; all others become -1.")]
Label = Annotated[
    str | None, option("--label", "Column (name or index) or npz key of the labels; default: the last column, or y.")
]
IndexBase = Annotated[str, option("--index-base", "First column index in a svmlight file.", ("0", "1", "auto"))]
Seed = Annotated[int, option("--seed", "Seed of the split and of random draws.")]
Json = Annotated[bool, option("--json", "Print the report as JSON, and nothing else, on stdout.")]
Penalty = Annotated[float, option("--C", "Penalty of a violated margin.")]


@dataclasses.dataclass(frozen=True)
class Training:
    """The options that `fit` and `path` share, one a field."""

    data: Data
    kernel: Annotated[str, option("--kernel", "Kernel.", tuple(KERNEL_OPTIONS))] = "rbf"
    gamma: Annotated[
        str | None,
        option("--gamma", "Width of the kernel (default: scale); not for linear.", "scale|median|paper|NUMBER"),
    ] = None
    degree: Annotated[int | None, option("--degree", "Degree of the polynomial kernel (default: 3).")] = None
    coef0: Annotated[
        float | None, option("--coef0", "Constant of the polynomial (default: 1) or sigmoid (default: 0) kernel.")
    ] = None
    loss: Annotated[
        str, option("--loss", "Loss to minimise; epsilon_insensitive is regression on numeric labels.", LOSSES)
    ] = "squared_hinge"
    epsilon: Annotated[float | None, option("--epsilon", "Half-width of the tube of regression (default: 0.1).")] = None
    tol: Tol = 1e-4
    test_fraction: Annotated[
        float, option("--test-fraction", "Fraction of samples held out (stratified) to measure the score.")
    ] = 0.0
    scale: Annotated[str, option("--scale", "Scaling of the columns; the model keeps it.", SCALINGS)] = "none"
    positive: Positive = None
    label: Label = None
    index_base: IndexBase = "auto"
    seed: Seed = 0
    dtype: Annotated[str, option("--dtype", "Floating-point type.", DTYPES)] = "float64"
    out: Annotated[str | None, option("--out", "File to write the model to (.npz).", "FILE")] = None
    as_json: Json = False

    def check(
        self, solver: str | None, max_steps: int | None, max_seconds: float | None, solvers: tuple[str, ...] = SOLVERS
    ) -> None:
        """Refuse values that cannot be used, and options that the chosen loss or kernel ignores.

        Args:
            solver: The solver that was named, or None.
            max_steps: Value of `--max-steps`, or None.
            max_seconds: Value of `--max-seconds`, or None.
            solvers: The names that `--solver` accepts.
        """
        self._check_loss(solver, max_steps)
        kernels = tuple(KERNEL_OPTIONS)
        for name, value, allowed in (
            ("--kernel", self.kernel, kernels),
            ("--solver", solver or solvers[0], solvers),
            ("--scale", self.scale, SCALINGS),
            ("--dtype", self.dtype, DTYPES),
        ):
            if value not in allowed:
                raise InputError(f"{name} is {value!r}: one of {', '.join(allowed)} is needed.")
        if not (math.isfinite(self.tol) and self.tol > 0):
            raise InputError(f"--tol is {self.tol}: a positive relative gap is needed.")
        if not 0 <= self.test_fraction < 1:
            raise InputError(f"--test-fraction is {self.test_fraction}: at least 0 and less than 1 is needed.")
        if max_steps is not None and not 0 <= max_steps < 2**31:
            raise InputError(f"--max-steps is {max_steps}: from 0 to {2**31 - 1} is needed.")
        if max_seconds is not None and not max_seconds >= 0:
            raise InputError(f"--max-seconds is {max_seconds}: at least 0 is needed.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed is {self.seed}: from 0 to {2**32 - 1} is needed.")
        for name in ("gamma", "degree", "coef0"):
            used, value = KERNEL_OPTIONS[self.kernel], getattr(self, name)
            if value is not None and name not in used:
                known = ", ".join(f"--{other}" for other in used) or "none"
                raise InputError(
                    f"--{name} is {value}: the {self.kernel} kernel does not use it (it uses {known}); leave it out."
                )

    def _check_loss(self, solver: str | None, max_steps: int | None) -> None:
        """Refuse an unknown loss, and options that are for another loss."""
        loss, epsilon = self.loss, self.epsilon
        if loss not in LOSSES:
            raise InputError(f"--loss is {loss!r}: one of {', '.join(LOSSES)} is needed.")
        if epsilon is not None and loss != "epsilon_insensitive":
            raise InputError(f"--epsilon is {epsilon}: it is for --loss epsilon_insensitive; leave it out.")
        if epsilon is not None and not (math.isfinite(epsilon) and epsilon >= 0):
            raise InputError(f"--epsilon is {epsilon}: at least 0 is needed.")
        for name, value in (("--solver", solver), ("--max-steps", max_steps)):
            if loss != "squared_hinge" and value is not None:
                raise InputError(f"{name} is {value}: it is for --loss squared_hinge; {loss} has its own solver.")


def penalties(listed: str | None, least: float, greatest: float, count: int) -> list[float]:
    """Return the values of C: those listed, else a logarithmic grid of `count` values."""
    if listed is not None:
        try:
            Cs = [float(text) for text in listed.split(",")]
        except ValueError:
            raise InputError(f"--C is {listed!r}: numbers with commas between are needed, such as 0.1,1,10.") from None
        if not all(math.isfinite(C) and C > 0 for C in Cs):
            raise InputError(f"--C is {listed!r}: every value must be positive.")
        return Cs
    for name, value in (("--C-min", least), ("--C-max", greatest)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value}: a positive number is needed.")
    if least > greatest:
        raise InputError(f"--C-min is {least}: it must not exceed --C-max, {greatest}.")
    if count < 1:
        raise InputError(f"--n-c is {count}: at least 1 is needed.")
    return np.geomspace(least, greatest, count).tolist()


def place_to_save(
    Cs: list[float], save_C: float | None, out: str | None, test_fraction: float, folds: int | None
) -> int | None:
    """Return the index of the value of C whose model is written; None if scores will choose it."""
    if folds is not None and folds < 2:
        raise InputError(f"--folds is {folds}: at least 2 are needed.")
    if save_C is not None:
        near = [place for place, C in enumerate(Cs) if math.isclose(C, save_C, rel_tol=1e-3)]
        if not near:
            raise InputError(f"--save-C is {save_C}: it is none of the values, {', '.join(f'{C:.6g}' for C in Cs)}.")
        return near[0]
    if len(Cs) == 1:
        return 0
    if out is not None and test_fraction == 0 and folds is None:
        raise InputError(
            "--out writes one model: say which with --save-C, or let scores choose with --folds 5 (or --test-fraction)."
        )
    return None


def label_of(label: str | None) -> str | int | None:
    """Return a column's index if the text is an integer, else its name."""
    try:
        return None if label is None else int(label)
    except ValueError:
        return label


def zero_based(index_base: str) -> bool | None:
    """Return whether indices count from 0; None leaves it to `load` to decide."""
    known = {"0": True, "1": False, "auto": None}
    if index_base not in known:
        raise InputError(f"--index-base is {index_base!r}: one of {', '.join(known)} is needed.")
    return known[index_base]
