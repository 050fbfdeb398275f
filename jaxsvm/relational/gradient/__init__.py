"""Engines for the gradient of a linear SVM over a join that is never formed."""
