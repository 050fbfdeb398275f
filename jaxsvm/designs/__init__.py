"""Certified linear SVMs of rows that lie anywhere: in memory, on a mesh, on a cluster, in files, in a join."""

from jaxsvm.designs.contract import Chunk, Design
from jaxsvm.designs.features import fourier, nystroem, standardised
from jaxsvm.designs.fit import DesignFit, cross_validate, fit
from jaxsvm.designs.places.arrays import from_arrays
from jaxsvm.designs.places.dask_ import from_dask
from jaxsvm.designs.places.files import from_files

__all__ = [
    "Chunk",
    "Design",
    "DesignFit",
    "cross_validate",
    "fit",
    "fourier",
    "from_arrays",
    "from_dask",
    "from_files",
    "nystroem",
    "standardised",
]
