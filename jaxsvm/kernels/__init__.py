"""Kernels: functions of two points that are pytrees, so that their parameters are traced and differentiated.

`kernel(x, z)` takes two points, `kernel.matrix(X, Z)` two sets of them. `+`, `*` and scaling by a number compose:
`RBF(0.1) + 0.5 * Linear()`. Any function of two points becomes a kernel with `Function(f)`. A class of kernels derives
from `Kernel` (`contract.py`) and goes to a file of this room.
"""

from jaxsvm.kernels.contract import Function, Kernel, Precomputed, Product, Scaled, Sum, as_kernel
from jaxsvm.kernels.forms import RBF, Laplacian, Linear, Polynomial, Sigmoid

__all__ = [
    "RBF",
    "Function",
    "Kernel",
    "Laplacian",
    "Linear",
    "Polynomial",
    "Precomputed",
    "Product",
    "Scaled",
    "Sigmoid",
    "Sum",
    "as_kernel",
]
