"""Certificates of problems: bounds that hold under rounding, and what they rest on."""
