"""Coresets: few weighted points on which a linear SVM is nearly the one trained on all points.

    small = jaxsvm.coresets.coreset(x, y, C=1.0, m=1000, key=0)
    fit = small.fit()                                   # or any solver: small.problem()
    jaxsvm.coresets.evaluate(small, (x, y)).worst       # measured, at queries that are hard for it

They serve data that do not fit into memory, come as a stream, change, or lie on several machines, and paths over C.
"""

from jaxsvm.coresets.bounds import sensitivity
from jaxsvm.coresets.construction import coreset
from jaxsvm.coresets.dynamic import DynamicCoreset
from jaxsvm.coresets.rows import certify, of_rows
from jaxsvm.coresets.sampling import sample_size
from jaxsvm.coresets.stream import Stream, StreamState, join, load_coreset, save_coreset
from jaxsvm.coresets.summary import Coreset, Evaluation, evaluate

__all__ = [
    "Coreset",
    "DynamicCoreset",
    "Evaluation",
    "Stream",
    "StreamState",
    "certify",
    "coreset",
    "evaluate",
    "join",
    "load_coreset",
    "of_rows",
    "sample_size",
    "save_coreset",
    "sensitivity",
]
