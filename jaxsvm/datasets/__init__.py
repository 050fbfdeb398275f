"""Data sets: read files into arrays, turn labels into signs, scale columns.

`load` reads svmlight, CSV, npz and Parquet files; `designs.from_files` uses the same readers a piece at a time. Plain
blocks are read fast, others line by line, so that an error can name the line. Nothing is dropped, filled in or guessed
silently, and no label is rounded.
"""

from jaxsvm.datasets.labels import Layout, two_classes
from jaxsvm.datasets.reading import Dataset, load
from jaxsvm.datasets.scaling import Scaling

__all__ = ["Dataset", "Layout", "Scaling", "load", "two_classes"]
