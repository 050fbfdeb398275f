"""The Typer application, the options that several commands share, and the decorator that makes a function a command."""

import dataclasses
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

import jaxsvm
from jaxsvm.cli.report import Exit, complain
from jaxsvm.errors import ConvergenceWarning, InputError, require
from jaxsvm.models.libsvm import kernel_class

app = typer.Typer(
    name="jaxsvm",
    help="Support vector machines whose answers carry a proof of quality.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

of_data, of_model, of_solver, of_output = (
    functools.partial(typer.Option, rich_help_panel=group) for group in ("Data", "Model", "Solver", "Output")
)
"""Options by the group of `--help` in which they stand."""

Kernel = Literal["linear", "rbf", "polynomial", "laplacian", "sigmoid"]
Loss = Literal["squared_hinge", "hinge", "epsilon_insensitive"]
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
Header = Annotated[bool | None, of_data("--header/--no-header", help="Whether a CSV file begins with names.")]
Seed = Annotated[int, of_solver(help="Seed of the folds and of random draws.", min=0, max=2**32 - 1)]
Json = Annotated[bool, of_output("--json", help="Print the report as JSON, and nothing else, on stdout.")]


@dataclasses.dataclass
class Training:
    """The options that `fit` and `path` share, one a field."""

    data: Data
    label: Label = None
    positive: Positive = None
    drop: Drop = None
    decimal: Annotated[Literal[".", ","], of_data(help="The decimal mark of a CSV file.")] = "."
    header: Header = None
    impute: Annotated[Literal["mean", "most_frequent"] | None, of_data(help="Fill in missing values.")] = None
    one_hot: Annotated[bool, of_data("--one-hot", help="Make an indicator of each text in a column of text.")] = False
    index_base: IndexBase = "auto"
    scale: Annotated[Scale, of_data(help="Scaling of the columns; the model keeps it.")] = "none"
    kernel: Annotated[Kernel, of_model(help="Kernel.")] = "rbf"
    gamma: Annotated[Text, of_model(help="Width of the kernel: scale (default), median, paper, or a number.")] = None
    degree: Annotated[int | None, of_model(help="Degree of a polynomial (default: 3).", min=1)] = None
    coef0: Annotated[Number, of_model(help="Constant of a polynomial (default: 1) or sigmoid (0).")] = None
    loss: Annotated[Loss, of_model(help="Loss; epsilon_insensitive: regression.")] = "squared_hinge"
    epsilon: Annotated[Number, of_model(help="Half-width of the tube of regression (default: 0.1).", min=0)] = None
    class_weight: Annotated[Literal["balanced"] | None, of_model(help="Give classes the same total weight.")] = None
    tol: Tol = 1e-4
    max_seconds: MaxSeconds = None
    dtype: Annotated[Literal["float32", "float64"], of_solver(help="Floating-point type.")] = "float64"
    seed: Seed = 0
    out: Annotated[Text, of_output(help="File to write the model to (.npz).", metavar="FILE")] = None
    as_json: Json = False

    def __post_init__(self) -> None:
        """Refuse a tolerance that is none, and options that the chosen loss or kernel does not use."""
        require(0 < self.tol < float("inf"), f"--tol is {self.tol}: a positive number is needed.")
        unused = {"positive", "class_weight"} if self.loss == "epsilon_insensitive" else {"epsilon"}
        unused |= {"gamma", "degree", "coef0"} - {field.name for field in dataclasses.fields(kernel_class(self.kernel))}
        for name in sorted(unused):
            need = f"--loss {self.loss} with --kernel {self.kernel} does not use it; leave it out."
            require(getattr(self, name) is None, f"--{name.replace('_', '-')} is {getattr(self, name)}: {need}")
        if self.loss == "epsilon_insensitive" and self.epsilon is None:
            self.epsilon = 0.1


def listed(options: list[str] | None) -> list[str]:
    """Return the values that an option lists, which may be given several times, or with commas."""
    return [key.strip() for keys in options or () for key in keys.split(",")]


def zero_based(index_base: str) -> bool | None:
    """Return whether indices count from 0; None leaves it to `load` to decide."""
    return {"0": True, "1": False, "auto": None}[index_base]


class _Once(TyperCommand):
    """A command that refuses an option of one value that is given twice: its first value would be lost."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = [parameter for parameter in self.make_parser(ctx).parse_args(list(args))[2] if parameter.nargs == 1]
        for parameter in given:
            if given.count(parameter) > 1 and not getattr(parameter, "multiple", True):
                ctx.fail(f"{parameter.opts[0]} is given twice: once is enough (several values take commas).")
        return super().parse_args(ctx, args)


def command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the command `name`; a parameter `options` stands for the options of `Training`.

    Input that cannot be used ends the command with one line on stderr and exit code 2.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(function).parameters)
        shared = inspect.signature(Training).parameters if own.pop("options", None) else {}

        def guarded(**given: Any) -> None:
            try:
                if shared:
                    given["options"] = Training(**{name: given.pop(name) for name in shared})
                with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # the report has the status
                    require(sys.stdout is not None, "the report cannot be written: stdout is closed.")
                    function(**given)
            except (InputError, OSError, UnicodeEncodeError) as error:  # of a full disk, or of an encoding of stdout
                complain(str(error))
                raise typer.Exit(Exit.BAD_INPUT) from None
            except KeyboardInterrupt:
                complain("interrupted before there was a result.")
                raise typer.Exit(Exit.INTERRUPTED) from None

        parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in [*shared.values(), *own.values()]]
        guarded.__doc__, guarded.__annotations__ = function.__doc__, {}
        guarded.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        app.command(name, cls=_Once)(guarded)
        return function

    return register


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jaxsvm {jaxsvm.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    del version
