"""Run the command by `python -m jaxsvm`."""

from jaxsvm.cli import main

main()
