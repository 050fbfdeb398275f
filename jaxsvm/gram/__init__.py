"""Gram operators: kernel matrices that are stored, computed on demand, or approximated."""

from jaxsvm.gram.build import gram
from jaxsvm.gram.operators import DenseGram, Gram, LowRankGram, TiledGram

__all__ = ["DenseGram", "Gram", "LowRankGram", "TiledGram", "gram"]
