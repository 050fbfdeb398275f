"""The Typer application, and the decorator that makes a function one of its commands."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import jaxsvm
from jaxsvm.cli.report.text import Exit, complain, require_stdout
from jaxsvm.errors import ConvergenceWarning, InputError

app = typer.Typer(
    name="jaxsvm",
    help="Support vector machines whose answers carry a proof of quality.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the command `name`.

    A parameter whose type is a dataclass stands for one option per field. Input that cannot be used ends the command
    with one line on stderr and exit code 2.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, Any] = {
            parameter.name: parameter.annotation
            for parameter in inspect.signature(function).parameters.values()
            if dataclasses.is_dataclass(parameter.annotation)
        }

        def guarded(**options: Any) -> None:
            for group, cls in groups.items():
                options[group] = cls(**{field.name: options.pop(field.name) for field in dataclasses.fields(cls)})
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)  # the report gives the status
                    require_stdout()
                    function(**options)
            except InputError as error:
                complain(str(error))
                raise typer.Exit(Exit.BAD_INPUT) from None
            except KeyboardInterrupt:
                complain("interrupted before there was a result.")
                raise typer.Exit(Exit.INTERRUPTED) from None

        guarded.__doc__, guarded.__annotations__ = function.__doc__, {}
        guarded.__signature__ = inspect.Signature(list(_expanded(function)))  # pyright: ignore[reportFunctionMemberAccess]
        app.command(name, cls=_Once, no_args_is_help=False)(guarded)
        return function

    return register


class _Once(TyperCommand):
    """A command that refuses an option of one value that is given twice: its first value would be lost."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = [parameter for parameter in self.make_parser(ctx).parse_args(list(args))[2] if parameter.nargs == 1]
        for option in given:
            if given.count(option) > 1 and not getattr(option, "multiple", True):
                ctx.fail(f"{option.opts[0]} is given twice: once is enough (several values take commas).")
        return super().parse_args(ctx, args)


def _expanded(function: Callable[..., None]) -> Iterator[inspect.Parameter]:
    """Yield a function's parameters by keyword, with the fields of a dataclass in place of the dataclass."""
    for parameter in inspect.signature(function).parameters.values():
        if not dataclasses.is_dataclass(parameter.annotation):
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        for field in dataclasses.fields(parameter.annotation):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=field.type, default=default)


def _show_version(wanted: bool) -> None:
    """Print the version and leave, if `--version` was given."""
    if wanted:
        typer.echo(f"jaxsvm {jaxsvm.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version
