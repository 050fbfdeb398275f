"""The options that several commands share, and the checks of their values."""

import dataclasses
import math
from typing import Annotated, Any

import numpy as np
import typer

from jaxsvm.datasets.columns.preparation import IMPUTE
from jaxsvm.datasets.refusal import PLACE
from jaxsvm.errors import require
from jaxsvm.runtime.checks import require_one_of

KERNEL_OPTIONS = {
    "linear": (),
    "rbf": ("gamma",),
    "polynomial": ("gamma", "degree", "coef0"),
    "laplacian": ("gamma",),
    "sigmoid": ("gamma", "coef0"),
}
"""The kernels, and the options that each of them uses."""

SOLVERS = ("auto", "smo", "pairwise", "away", "classic", "cvm")
SCALINGS = ("none", "standardise", "min-max")
SPELLINGS = {"standardize": "standardise"}
LOSSES = ("squared_hinge", "hinge", "epsilon_insensitive", "one_class")
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
Label = Annotated[str | None, option("--label", "Column or npz key of the labels (default: the last column, or y).")]
IndexBase = Annotated[str, option("--index-base", "First column index in a svmlight file.", ("0", "1", "auto"))]
Drop = Annotated[list[str] | None, option("--drop", "Columns to leave out, by name or place.", "COL[,COL]")]
Seed = Annotated[int, option("--seed", "Seed of the split and of random draws.")]
Json = Annotated[bool, option("--json", "Print the report as JSON, and nothing else, on stdout.")]


@dataclasses.dataclass(frozen=True)
class Training:
    """The options that `fit` and `path` share, one a field."""

    data: Data
    kernel: Annotated[str, option("--kernel", "Kernel.", tuple(KERNEL_OPTIONS))] = "rbf"
    gamma: Annotated[
        str | None,
        option("--gamma", "Width of the kernel (default: scale); path: several.", "scale|median|paper|NUMBER"),
    ] = None
    degree: Annotated[int | None, option("--degree", "Degree of the polynomial kernel (default: 3).")] = None
    coef0: Annotated[float | None, option("--coef0", "Constant of polynomial (default: 1) or sigmoid (0).")] = None
    loss: Annotated[str, option("--loss", "Loss; epsilon_insensitive: regression.", LOSSES)] = "squared_hinge"
    epsilon: Annotated[float | None, option("--epsilon", "Half-width of the tube of regression (default: 0.1).")] = None
    nu: Annotated[float | None, option("--nu", "Share of errors, in place of C or epsilon.")] = None
    probability: Annotated[bool, option("--probability", "Give the model probabilities: five more fits.")] = False
    tol: Tol = 1e-4
    solver: Annotated[
        str | None, option("--solver", "Solver of two classes and the squared hinge (default: auto).", SOLVERS)
    ] = None
    max_steps: Annotated[int | None, option("--max-steps", "Cap on the steps of one fit of such a solver.")] = None
    max_seconds: MaxSeconds = None
    test_fraction: Annotated[float, option("--test-fraction", "Fraction held out (stratified) for a score.")] = 0.0
    scale: Annotated[str, option("--scale", "Scaling of the columns; the model keeps it.", SCALINGS)] = "none"
    positive: Positive = None
    class_weight: Annotated[
        str | None, option("--class-weight", "Factors of C by class; balanced: as rare as it is.", "balanced|A=2,B=1")
    ] = None
    label: Label = None
    drop: Drop = None
    index_col: Annotated[str | None, option("--index-col", "The column that numbers the rows: left out.", "COL")] = None
    decimal: Annotated[str, option("--decimal", "The decimal mark of a CSV file.", (".", ","))] = "."
    impute: Annotated[
        str | None, option("--impute", "Fill in missing values (of text always the most frequent).", IMPUTE)
    ] = None
    one_hot: Annotated[bool, option("--one-hot", "Make an indicator of each text in a column of text.")] = False
    index_base: IndexBase = "auto"
    seed: Seed = 0
    dtype: Annotated[str, option("--dtype", "Floating-point type.", DTYPES)] = "float64"
    out: Annotated[str | None, option("--out", "File to write the model to (.npz).", "FILE")] = None
    as_json: Json = False

    def __post_init__(self) -> None:
        """Take either spelling of a scaling."""
        object.__setattr__(self, "scale", SPELLINGS.get(self.scale, self.scale))

    @property
    def gammas(self) -> list[str]:
        """Return the values of gamma listed in the option, as text; an empty list without the option."""
        return [] if self.gamma is None else [text.strip() for text in self.gamma.split(",")]

    @property
    def dropped(self) -> list[Any]:
        """Return the columns to leave out; as --index-col a number is a place, whatever is named so."""
        index: Any = self.index_col
        index = int(index) if PLACE.fullmatch(index or "") else index
        return listed(self.drop) + ([] if self.index_col is None else [index])

    @property
    def prepares(self) -> bool:
        """Return whether columns are prepared (dropped, imputed, encoded, decimal commas) before they are points."""
        return bool(self.dropped) or self.decimal != "." or self.impute is not None or self.one_hot

    @property
    def named_solver(self) -> str | None:
        """Return the solver that was asked for; None for "auto"."""
        return None if self.solver == "auto" else self.solver

    def check(self) -> None:
        """Refuse values that cannot be used, and options that the chosen loss or kernel ignores."""
        loss, epsilon, steps, seconds = self.loss, self.epsilon, self.max_steps, self.max_seconds
        require_one_of("--loss", loss, LOSSES)
        known = epsilon is None or loss == "epsilon_insensitive"
        require(known, f"--epsilon is {epsilon}: it is for --loss epsilon_insensitive; leave it out.")
        require(epsilon is None or 0 <= epsilon < math.inf, f"--epsilon is {epsilon}: at least 0 is needed.")
        self._check_classes()
        for name, value in (("--solver", self.named_solver), ("--max-steps", steps)):
            known = value is None or loss == "squared_hinge"
            require(known, f"{name} is {value}: it is for --loss squared_hinge; {loss} has its own solver.")
        usable = self.max_steps is None or self.named_solver is not None
        require(usable, "--max-steps is for a named solver: add --solver smo, say.")
        require_one_of("--kernel", self.kernel, tuple(KERNEL_OPTIONS))
        require_one_of("--solver", self.solver or "auto", SOLVERS)
        require_one_of("--scale", self.scale, SCALINGS)
        require_one_of("--dtype", self.dtype, DTYPES)
        require_one_of("--decimal", self.decimal, (".", ","))
        require_one_of("--impute", self.impute or "mean", IMPUTE)
        require(0 < self.tol < math.inf, f"--tol is {self.tol}: a positive relative gap is needed.")
        fraction, largest = self.test_fraction, 2**31 - 1
        require(0 <= fraction < 1, f"--test-fraction is {fraction}: at least 0 and less than 1 is needed.")
        require(steps is None or 0 <= steps <= largest, f"--max-steps is {steps}: from 0 to {largest} is needed.")
        require(seconds is None or seconds >= 0, f"--max-seconds is {seconds}: at least 0 is needed.")
        require(0 <= self.seed < 2**32, f"--seed is {self.seed}: from 0 to {2**32 - 1} is needed.")
        used = KERNEL_OPTIONS[self.kernel]
        known = ", ".join(f"--{name}" for name in used) or "none"
        for name in sorted({"gamma", "degree", "coef0"} - set(used)):
            require(
                (value := getattr(self, name)) is None,
                f"--{name} is {value}: the {self.kernel} kernel does not use it (it uses {known}); leave it out.",
            )

    def _check_classes(self) -> None:
        """Refuse options of classes where there are none, and a nu that is out of range or not used."""
        loss, nu = self.loss, self.nu
        for name, value in (
            ("--class-weight", self.class_weight), ("--positive", self.positive), ("--probability", self.probability)
        ):  # fmt: skip
            known = value in (None, False) or loss in ("squared_hinge", "hinge")
            require(known, f"{name} is {value!r}: --loss {loss} has no classes; leave it out.")
        require(nu is None or 0 < nu <= 1, f"--nu is {nu}: more than 0 and at most 1 is needed.")
        known = "hinge (in place of C), epsilon_insensitive (of epsilon) or one_class"
        require(nu is None or loss != "squared_hinge", f"--nu is {nu}: it is for --loss {known}.")
        require(nu is None or self.epsilon is None, f"--epsilon is {self.epsilon}: --nu finds it; leave one out.")


@dataclasses.dataclass(frozen=True)
class Grid:
    """The options of `path` that list values of C and choose between them."""

    C: Annotated[str | None, option("--C", "Penalties, instead of a grid.", "C1,C2,...")] = None
    C_min: Annotated[float, option("--C-min", "Smallest C of the logarithmic grid.")] = 1e-2
    C_max: Annotated[float, option("--C-max", "Largest C of the grid.")] = 1e3
    n_c: Annotated[int, option("--n-c", "Number of values in the grid.")] = 16
    folds: Annotated[int | None, option("--folds", "Choose C by cross-validation with this many folds.")] = None
    one_standard_error: Annotated[
        bool, option("--one-standard-error", "With --folds: the smallest C within one standard error of the best.")
    ] = False
    save_C: Annotated[float | None, option("--save-C", "C of the model for --out (default: the best by score).")] = None

    def values(self) -> list[float]:
        """Return the values of C: those listed, else the logarithmic grid."""
        need = "--one-standard-error is for --folds: add --folds 5, say."
        require(self.folds is not None or not self.one_standard_error, need)
        if self.C is not None:
            try:
                Cs = [float(text) for text in self.C.split(",")]
            except ValueError:
                Cs = []
            require(bool(Cs), f"--C is {self.C!r}: numbers with commas between are needed, such as 0.1,1,10.")
            require(all(0 < C < math.inf for C in Cs), f"--C is {self.C!r}: every value must be positive.")
            return Cs
        low, high = self.C_min, self.C_max
        for name, value in (("--C-min", low), ("--C-max", high)):
            require(0 < value < math.inf, f"{name} is {value}: a positive number is needed.")
        require(low <= high, f"--C-min is {low}: it must not exceed --C-max, {high}.")
        require(self.n_c >= 1, f"--n-c is {self.n_c}: at least 1 is needed.")
        return np.geomspace(low, high, self.n_c).tolist()

    def check(self, options: Training) -> None:
        """Refuse options of training that a path cannot use."""
        loss, nu = options.loss, options.nu
        of_C = loss == "epsilon_insensitive" or (nu is None and loss != "one_class")
        require(of_C, f"--loss is {loss} with --nu {nu or 0.5}: nu is in place of C, and a path is one of C; take fit.")
        need = f"--gamma is {options.gamma!r}: cross-validation chooses among several; add --folds 5, say."
        require(len(options.gammas) < 2 or self.folds is not None, need)

    def place_to_save(self, Cs: list[float], options: Training) -> int | None:
        """Return the index of the value of C whose model is written; None if scores will choose it."""
        require(self.folds is None or self.folds >= 2, f"--folds is {self.folds}: at least 2 are needed.")
        if self.save_C is not None:
            near = [place for place, C in enumerate(Cs) if math.isclose(C, self.save_C, rel_tol=1e-3)]
            listed = ", ".join(f"{C:.6g}" for C in Cs)
            require(bool(near), f"--save-C is {self.save_C}: it is none of the values, {listed}.")
            return near[0]
        if len(Cs) == 1:
            return 0
        need = (
            "--out writes one model: say which with --save-C, or let scores choose with --folds 5 (or --test-fraction)."
        )
        require(options.out is None or options.test_fraction > 0 or self.folds is not None, need)
        return None


def listed(options: list[str] | None) -> list[str]:
    """Return the columns that an option names, which may be given several times, or with commas."""
    return [key.strip() for keys in options or () for key in keys.split(",")]


def zero_based(index_base: str) -> bool | None:
    """Return whether indices count from 0; None leaves it to `load` to decide."""
    known = {"0": True, "1": False, "auto": None}
    require_one_of("--index-base", index_base, tuple(known))
    return known[index_base]
