"""The signed matrix `y_i y_j (K_ij + offset)` of problems of two classes, for any Gram operator of K."""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.gram.operators import DenseGram, Gram
from jaxsvm.numerics.precision import matmul, sums, weighted_rows
from jaxsvm.numerics.selection import entries, entry


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SignedGram:
    """The matrix `B_ij = y_i y_j (K_ij + offset)`. It stores no values of its own."""

    gram: Gram
    y: Float[Array, "n *L"]  # signs; for `matvec` also one column a lane
    # 1.0 where the constant is one more feature of value 1, else 0.0; static
    offset: float = dataclasses.field(metadata={"static": True})

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `B[i]`, n kernel evaluations."""
        return self._signed(entry(self.y, i) * self.y, self.gram.row(i))

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `B[index]`."""
        return self._signed(jnp.outer(entries(self.y, index), self.y), self.gram.rows(index))

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `B[rows, columns]`."""
        return self._signed(jnp.outer(entries(self.y, rows), entries(self.y, columns)), self.gram.block(rows, columns))

    def diag(self) -> Float[Array, " n"]:
        """Return `B_ii`."""
        return self._with_constant(self.gram.diag().astype(self.y.dtype), 1)

    def matvec(self, v: Float[Array, "n *L"]) -> Float[Array, "n *L"]:
        """Return `B v` of each column."""
        y = self._signs
        signed = y * v
        return y * self._with_constant(self.gram.matvec(signed), signed.sum(axis=0, keepdims=True))

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `B v` at the cost of the rows where v is not 0: for solvers, not for derivatives."""
        signed = self.y * v
        return self.y * self._with_constant(self.gram.support_matvec(signed), sums(signed)[0])

    def few_rows_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `B v` from the few rows where v is not 0, also of a stored matrix; in v's dtype."""
        signed, gram = self.y * v, self.gram
        product = weighted_rows(signed, cast(DenseGram, gram).K) if gram.stored else gram.support_matvec(signed)
        return self.y * self._with_constant(product.astype(v.dtype), signed.sum())

    def quadratic_form(self, v: Float[Array, " n"]) -> Float[Array, ""]:
        """Return `v' B v`, by tiles; its derivatives need no n x n matrix of their own."""
        signed = self._signs * v
        return self._with_constant(matmul(signed, self.gram.matvec(signed)), signed.sum() ** 2)

    @property
    def _signs(self) -> Float[Array, "n *L"]:
        return lax.stop_gradient(self.y)

    def _signed(self, signs: Array, K: Array) -> Array:
        """Multiply in the wider of the two dtypes: in the narrower one `K + offset` would be rounded."""
        return signs * self._with_constant(K.astype(jnp.result_type(K.dtype, signs.dtype)), 1)

    def _with_constant(self, of_kernel: Array, of_ones: Any) -> Array:
        return of_kernel + self.offset * of_ones if self.offset else of_kernel
