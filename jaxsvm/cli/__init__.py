"""The command `jaxsvm`: fit, path, predict, info, doctor, coreset and relational. Each is a thin layer.

Reports go to stdout (`--json`: one JSON object and nothing else), progress and errors to stderr. Exit codes: 0
certified, 1 finished but not certified (a model is still written), 2 input that cannot be used, 130 after Ctrl-C (the
last certified point is saved first).
"""

import os
import sys

from jaxsvm import __version__ as version
from jaxsvm.errors import MissingPackageError, require_package

try:
    for module in ("rich", "typer"):
        require_package(module, "the command")
except MissingPackageError as error:
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"jaxsvm {version}\n")
        raise SystemExit(0) from None
    sys.stderr.write(f"jaxsvm: error: {error}\n")
    raise SystemExit(2) from None  # as for any input that cannot be used

# Each registers its commands, in the order of --help.
from jaxsvm.cli import training, models, coreset, relational  # noqa: F401, I001
from jaxsvm.cli.app import app
from jaxsvm.cli.report import Exit
from jaxsvm.runtime.startup import leave_at_interrupts

__all__ = ["app", "main"]


def main() -> None:
    """Run the command."""
    leave_at_interrupts()
    try:
        app()
    except SystemExit as ended:
        if ended.code == Exit.INTERRUPTED:  # a stopped computation may go on for long in its thread
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(Exit.INTERRUPTED)
        raise
