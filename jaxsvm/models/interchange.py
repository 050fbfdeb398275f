"""Exchange models with other libraries: LIBSVM's files, scikit-learn's SVC and SVR, ONNX."""

from jaxsvm.models.libsvm import from_libsvm, to_libsvm
from jaxsvm.models.onnx import to_onnx
from jaxsvm.models.sklearn import to_sklearn

__all__ = ["from_libsvm", "to_libsvm", "to_onnx", "to_sklearn"]
