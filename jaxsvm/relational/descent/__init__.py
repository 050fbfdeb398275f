"""Descend on that gradient: fits, paths, Pegasos on joined samples."""
