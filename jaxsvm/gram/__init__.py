"""Gram operators: kernel matrices that are stored, computed on demand, or approximated."""

from jaxsvm.gram.build import gram
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import DenseGram
from jaxsvm.gram.low_rank import LowRankGram
from jaxsvm.gram.tiled import TiledGram

__all__ = ["DenseGram", "Gram", "LowRankGram", "TiledGram", "gram"]
