"""Gram operators: kernel matrices that are stored, computed on demand, or approximated."""

from jaxsvm.gram.low_rank import LowRankGram
from jaxsvm.gram.operators import DenseGram, Gram, TiledGram, gram

__all__ = ["DenseGram", "Gram", "LowRankGram", "TiledGram", "gram"]
