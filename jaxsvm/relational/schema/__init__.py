"""Schemas of joins: trees, blocks of features, tables and databases."""
