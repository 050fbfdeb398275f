"""Data sets: files into arrays, labels into signs, columns to one scale, and points to play with.

`load` reads svmlight, CSV, npz and Parquet files. It reads fast; what the fast reader refuses is read once more line by
line, slowly, so that the error can name the line. Nothing is dropped, filled in or guessed in silence.
"""

from jaxsvm.datasets.labels import two_classes
from jaxsvm.datasets.layout import Layout
from jaxsvm.datasets.reading import Dataset, load
from jaxsvm.datasets.scaling import Scaling
from jaxsvm.datasets.synthetic import two_gaussians

__all__ = ["Dataset", "Layout", "Scaling", "load", "two_classes", "two_gaussians"]
