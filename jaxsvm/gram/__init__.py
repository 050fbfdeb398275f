"""Gram operators: kernel matrices that are stored, computed on demand, or approximated."""

from jaxsvm.gram.build import gram
from jaxsvm.gram.low_rank import LowRankGram
from jaxsvm.gram.operators import DenseGram, Gram, TiledGram

__all__ = ["DenseGram", "Gram", "LowRankGram", "TiledGram", "gram"]
