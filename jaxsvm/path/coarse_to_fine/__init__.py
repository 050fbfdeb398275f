"""Paths of squared-hinge problems: few values of C first, the others from their neighbours."""
