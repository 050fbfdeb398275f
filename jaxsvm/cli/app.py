"""The Typer application, and the decorator that makes a function one of its commands."""

import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import jaxsvm
from jaxsvm.cli.options import Training
from jaxsvm.cli.report import Exit, complain
from jaxsvm.errors import ConvergenceWarning, InputError, require

app = typer.Typer(
    name="jaxsvm",
    help="Support vector machines whose answers carry a proof of quality.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)  # the report gives the status
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
