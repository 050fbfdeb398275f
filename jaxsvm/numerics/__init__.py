"""Leaf algorithms without an SVM noun in them."""
