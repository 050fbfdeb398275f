"""Stopgap kernels (a fuller version follows)."""
import dataclasses
from typing import Any
import jax, jax.numpy as jnp
P = jax.lax.Precision.HIGHEST

@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Linear:
    @property
    def stationary(self): return False
    def matrix(self, x, z, *, centred=False): return jnp.matmul(x, z.T, precision=P)
    def diag(self, x): return (x * x).sum(1)

@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RBF:
    gamma: Any
    @property
    def stationary(self): return True
    def matrix(self, x, z, *, centred=False):
        sq = (x * x).sum(1)[:, None] + (z * z).sum(1) - 2 * jnp.matmul(x, z.T, precision=P)
        return jnp.exp(-self.gamma * jnp.maximum(sq, 0))
    def diag(self, x): return jnp.ones(x.shape[0], x.dtype)

@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Precomputed:
    pass
