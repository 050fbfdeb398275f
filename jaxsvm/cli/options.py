"""The options that several commands share, in the groups of `--help`, and the checks of what goes together."""

import dataclasses
import functools
import re
from typing import Annotated, Any, Literal

import typer

from jaxsvm.errors import require
from jaxsvm.models.libsvm import kernel_class

of_data, of_model, of_solver, of_output = (
    functools.partial(typer.Option, rich_help_panel=group) for group in ("Data", "Model", "Solver", "Output")
)
"""Options by the group of `--help` in which they stand."""

CLASSES = ("squared_hinge", "hinge")
USED_BY = {
    "epsilon": ("epsilon_insensitive",),
    "nu": ("hinge", "epsilon_insensitive", "one_class"),
    **dict.fromkeys(("positive", "class_weight", "probability"), CLASSES),
}
"""The losses that an option is for, if it is not for all."""

Kernel = Literal["linear", "rbf", "polynomial", "laplacian", "sigmoid"]
Scale = Literal["none", "standardise", "min-max", "standardize"]
Text = str | None
Number = float | None

Data = Annotated[str, typer.Argument(metavar="DATA", help="A svmlight, CSV, npz or Parquet file.")]
Tol = Annotated[float, of_solver(help="Relative duality gap to certify.")]
MaxSeconds = Annotated[Number, of_solver(help="Stop after about this many seconds.", min=0)]
Positive = Annotated[Text, of_data(help="Label of the class +1; all others become -1.")]
Label = Annotated[Text, of_data(help="Column or npz key of the labels (default: the last column, or y).")]
IndexBase = Annotated[Literal["0", "1", "auto"], of_data(help="First column index in a svmlight file.")]
Drop = Annotated[list[str] | None, of_data(help="Columns to leave out, by name or place.", metavar="COL[,COL]")]
Seed = Annotated[int, of_solver(help="Seed of the split and of random draws.", min=0, max=2**32 - 1)]
Json = Annotated[bool, of_output("--json", help="Print the report as JSON, and nothing else, on stdout.")]


@dataclasses.dataclass(frozen=True)
class Training:
    """The options that `fit` and `path` share, one a field."""

    data: Data
    label: Label = None
    positive: Positive = None
    drop: Drop = None
    index_col: Annotated[Text, of_data(help="The column that numbers the rows: left out.", metavar="COL")] = None
    decimal: Annotated[Literal[".", ","], of_data(help="The decimal mark of a CSV file.")] = "."
    impute: Annotated[Literal["mean", "most_frequent"] | None, of_data(help="Fill in missing values.")] = None
    one_hot: Annotated[bool, of_data("--one-hot", help="Make an indicator of each text in a column of text.")] = False
    index_base: IndexBase = "auto"
    scale: Annotated[Scale, of_data(help="Scaling of the columns; the model keeps it.")] = "none"
    test_fraction: Annotated[float, of_data(help="Fraction held out (stratified) for a score.", min=0, max=1)] = 0.0
    kernel: Annotated[Kernel, of_model(help="Kernel.")] = "rbf"
    gamma: Annotated[Text, of_model(help="Width of the kernel: scale (default), median, paper, or numbers.")] = None
    degree: Annotated[int | None, of_model(help="Degree of a polynomial (default: 3).", min=1)] = None
    coef0: Annotated[Number, of_model(help="Constant of a polynomial (default: 1) or sigmoid (0).")] = None
    loss: Annotated[
        Literal["squared_hinge", "hinge", "epsilon_insensitive", "one_class"],
        of_model(help="Loss; epsilon_insensitive: regression."),
    ] = "squared_hinge"
    epsilon: Annotated[Number, of_model(help="Half-width of the tube of regression (default: 0.1).", min=0)] = None
    nu: Annotated[Number, of_model(help="Share of errors, in place of C or epsilon.", min=0, max=1)] = None
    class_weight: Annotated[Text, of_model(help="Factors of C by class.", metavar="balanced|A=2,B=1")] = None
    probability: Annotated[bool, of_model("--probability", help="Give the model probabilities: more fits.")] = False
    tol: Tol = 1e-4
    max_seconds: MaxSeconds = None
    dtype: Annotated[Literal["float32", "float64"], of_solver(help="Floating-point type.")] = "float64"
    seed: Seed = 0
    out: Annotated[Text, of_output(help="File to write the model to (.npz).", metavar="FILE")] = None
    as_json: Json = False

    def __post_init__(self) -> None:
        """Refuse options that the chosen loss or kernel does not use."""
        for name, losses in USED_BY.items():
            value, need = getattr(self, name), f"it is for --loss {' or '.join(losses)}; leave it out."
            used = value in (None, False) or self.loss in losses
            require(used, f"--{name.replace('_', '-')} is {value}: {need}")
        require(self.nu is None or self.epsilon is None, f"--epsilon is {self.epsilon}: --nu finds it; leave one out.")
        require(self.nu != 0, "--nu is 0: more than 0 and at most 1 is needed.")
        known = [field.name for field in dataclasses.fields(kernel_class(self.kernel))]
        for name in {"gamma", "degree", "coef0"} - set(known):
            need = f"the {self.kernel} kernel does not use it (it uses {', '.join(known) or 'none'}); leave it out."
            require(getattr(self, name) is None, f"--{name} is {getattr(self, name)}: {need}")

    @property
    def gammas(self) -> list[str]:
        """Return the values of gamma listed in the option, as text; an empty list without the option."""
        return listed([] if self.gamma is None else [self.gamma])

    @property
    def dropped(self) -> list[Any]:
        """Return the columns to leave out; as --index-col a number is a place, whatever is named so."""
        index: Any = self.index_col
        index = int(index) if re.fullmatch(r"-?\d+", index or "") else index
        return listed(self.drop) + ([] if self.index_col is None else [index])

    @property
    def prepares(self) -> bool:
        """Return whether columns are prepared (dropped, imputed, encoded, decimal commas) before they are points."""
        return bool(self.dropped) or self.decimal != "." or self.impute is not None or self.one_hot


def listed(options: list[str] | None) -> list[str]:
    """Return the values that an option lists, which may be given several times, or with commas."""
    return [key.strip() for keys in options or () for key in keys.split(",")]


def zero_based(index_base: str) -> bool | None:
    """Return whether indices count from 0; None leaves it to `load` to decide."""
    return {"0": True, "1": False, "auto": None}[index_base]
