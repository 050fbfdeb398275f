"""Refuse to compute in a forked child of a process that has computed: JAX's threads are missing there."""

import os

_computing: set[int] = set()
"""Process ids, this process or its ancestors, in which jaxsvm computed first."""


def require_own_process() -> None:
    """Note the first process that computes, and refuse to compute in one that was forked from it.

    Raises:
        RuntimeError: In a forked child, where the computation would never return.
    """
    if not _computing:
        _computing.add(os.getpid())
    elif os.getpid() not in _computing:
        raise RuntimeError(
            "This process was forked from one in which jaxsvm had computed: JAX's threads are not here, and JAX would "
            'wait for them for ever. Take joblib\'s "loky" or "threading" in place of "multiprocessing", the start '
            'methods "spawn" or "forkserver" of Python\'s own, or fork before the first fit.'
        )
