"""Stopgap."""
