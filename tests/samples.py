"""The sixty samples of the contract suite and of its neighbours: shared, so that their programs are compiled once."""

import functools

import oracle
from oracle_hinge import noisy

import jaxsvm
from jaxsvm.kernels import RBF

N = 60
GAMMA = 0.5


@functools.cache
def data(n=N):
    """`x (n, 2)` and labels."""
    return noisy(n)[:2]


@functools.cache
def kernel_matrix(gamma=GAMMA):
    """`K (n, n)` in float64, by NumPy."""
    return oracle.kernel_matrix("rbf", data()[0], gamma=gamma)


GRAMS = {
    (dtype, gamma): jaxsvm.gram(RBF(gamma), data()[0].astype(dtype), store=True)
    for dtype in ("float32", "float64")
    for gamma in (GAMMA, 0.3)
}
"""Made here, since whoever asks first may be traced."""


def gram(dtype="float64", gamma=GAMMA):
    """The Gram operator of the samples."""
    return GRAMS[dtype, gamma]


def svm(C=2.0, dtype="float64", **options):
    """The squared-hinge SVM of the samples."""
    return jaxsvm.svm_problem(gram(dtype), data()[1], C, **options)


def hinge(C=2.0, dtype="float64", bias="none", **options):
    """The hinge SVM of the samples."""
    return jaxsvm.hinge_problem(gram(dtype), data()[1], C, bias=bias, **options)


@functools.cache
def exact(C=2.0):
    """The exact solution of `svm(C)`."""
    return oracle.solve_svm(kernel_matrix(), data()[1], C)
