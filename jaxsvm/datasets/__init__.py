"""Data sets: read files into arrays, turn labels into signs, scale columns, draw synthetic points.

`load` reads svmlight, CSV, npz and Parquet files; `designs.from_files` uses the same readers a piece at a time. Plain
blocks are read fast, others line by line, so that an error can name the line. Nothing is dropped, filled in or guessed
silently, and no label is rounded.
"""

from jaxsvm.datasets.labels import two_classes
from jaxsvm.datasets.layout import Layout
from jaxsvm.datasets.reading import Dataset, load
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.datasets.synthetic import two_gaussians

__all__ = ["Dataset", "Layout", "Scaling", "load", "two_classes", "two_gaussians"]
