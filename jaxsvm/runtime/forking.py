"""Processes that were forked from one that had computed: JAX's threads are not there, and it waits for them."""

import os

_computing: set[int] = set()
"""The process that computed first, of this one and those that it was forked from."""


def require_own_process() -> None:
    """Note the process that computes first, and refuse to compute in one that was forked from it.

    Raises:
        RuntimeError: In a forked child, where the computation would not return.
    """
    if not _computing:
        _computing.add(os.getpid())
    elif os.getpid() not in _computing:
        raise RuntimeError(
            "This process was forked from one in which jaxsvm had computed: JAX's threads are not here, and JAX would "
            'wait for them for ever. Take joblib\'s "loky" or "threading" in place of "multiprocessing", the start '
            'methods "spawn" or "forkserver" of Python\'s own, or fork before the first fit.'
        )
