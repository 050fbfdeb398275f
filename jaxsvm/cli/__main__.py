"""Run the command by `python -m jaxsvm.cli`."""

from jaxsvm.cli import main

main()
