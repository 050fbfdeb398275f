"""Models that predict: files, checks, and exchange with LIBSVM, scikit-learn and ONNX."""
