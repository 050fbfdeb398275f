"""Data sets: files into arrays, labels into signs, columns to one scale, and points to play with.

`load` reads svmlight, CSV, npz and Parquet files, and so does `coresets.from_files`, a piece at a time, by the same
readers. They read fast; blocks that are not plain are read line by line, so that the error can name the line. Nothing
is dropped, filled in or guessed in silence, and no label is rounded.
"""

from jaxsvm.datasets.labels import two_classes
from jaxsvm.datasets.layout import Layout
from jaxsvm.datasets.reading import Dataset, load
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.datasets.synthetic import two_gaussians

__all__ = ["Dataset", "Layout", "Scaling", "load", "two_classes", "two_gaussians"]
