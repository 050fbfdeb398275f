"""`python -m jaxsvm.cli` is the command too."""

from jaxsvm.cli import main

main()
