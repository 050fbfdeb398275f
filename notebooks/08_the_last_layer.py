# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # An SVM as the last layer
#
# A network makes features, and an SVM is trained on them *to the optimum*, at every step. The network learns from
# the loss on held-out samples, through the SVM's solution: by the implicit derivative, which is one linear system, not
# by unrolling the solver.
#
# The network is flax's where flax is installed, else the same in plain JAX.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxsvm
from jaxsvm.kernels import Linear

try:
    from flax import linen as nn

    class Features(nn.Module):
        """Two inputs to four features."""

        @nn.compact
        def __call__(self, x):
            for width in (32, 32):
                x = nn.tanh(nn.Dense(width)(x))
            return nn.Dense(4)(x)

    network = Features()

    def begin(key):
        return network.init(key, jnp.zeros((1, 2)))

    features = network.apply
except ImportError:
    WIDTHS = (2, 32, 32, 4)

    def begin(key):
        keys = jax.random.split(key, len(WIDTHS) - 1)
        shapes = zip(WIDTHS[:-1], WIDTHS[1:], strict=True)
        return [
            {"w": jax.random.normal(k, shape) / np.sqrt(shape[0]), "b": jnp.zeros(shape[1])}
            for k, shape in zip(keys, shapes, strict=True)
        ]

    def features(params, x):
        for layer in params[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x @ params[-1]["w"] + params[-1]["b"]


# %% [markdown]
# Two spirals, which no line separates.

# %%
rng = np.random.default_rng(0)


def sample(n):
    turn, side = rng.uniform(0.1, 1.0, n) * 2.2 * np.pi, rng.integers(0, 2, n)
    angle = turn + np.pi * side
    x = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) / 3 + 0.05 * rng.normal(size=(n, 2))
    return jnp.asarray(x, jnp.float32), jnp.asarray(np.where(side == 1, 1.0, -1.0), jnp.float32)


(x, y), (x_val, y_val), (x_test, y_test) = sample(200), sample(200), sample(1000)


def machine(params, points, signs):
    """The SVM on the network's features: solved, and certified."""
    problem = jaxsvm.svm_problem(jaxsvm.gram(Linear(), features(params, points)), signs, 1.0)
    return problem, jaxsvm.fit(problem, jaxsvm.Newton(tol=1e-4))


def held_out_loss(params):
    problem, fit = machine(params, x, y)
    margins = y_val * jaxsvm.decision_function(fit, problem, features(params, x_val))
    return jnp.mean(jax.nn.softplus(3 * (0.5 - margins)) / 3), fit.certificate.relative_gap


def accuracy(params):
    problem, fit = machine(params, x, y)
    values = jaxsvm.decision_function(fit, problem, features(params, x_test))
    return float(jnp.mean(jnp.where(values >= 0, 1, -1) == y_test))


# %% [markdown]
# First, that the derivative is one: along a random direction, against a finite difference.

# %%
with jax.enable_x64(True):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), begin(jax.random.key(0)))
    keys = iter(jax.random.split(jax.random.key(1), 20))
    direction = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape), params)
    points, signs = x.astype(jnp.float64), y.astype(jnp.float64)

    def along(t):
        moved = jax.tree.map(lambda leaf, way: leaf + t * way, params, direction)
        problem = jaxsvm.svm_problem(jaxsvm.gram(Linear(), features(moved, points)), signs, 1.0)
        fit = jaxsvm.fit(problem, jaxsvm.Newton(tol=1e-12))
        values = jaxsvm.decision_function(fit, problem, features(moved, x_val.astype(jnp.float64)))
        return jnp.mean(jax.nn.softplus(3 * (0.5 - y_val * values)) / 3)

    derivative, step = float(jax.grad(along)(0.0)), 1e-6
    difference = float((along(step) - along(-step)) / (2 * step))
print(f"through the solution {derivative:.7f}, by differences {difference:.7f}")
assert abs(derivative - difference) < 1e-4 * max(abs(difference), 1e-3)

# %% [markdown]
# Then train, end to end.

# %%
params = begin(jax.random.key(0))
optimizer = optax.adam(2e-2)
opt_state = optimizer.init(params)


@jax.jit
def update(params, opt_state):
    (loss, gap), gradient = jax.value_and_grad(held_out_loss, has_aux=True)(params)
    updates, opt_state = optimizer.update(gradient, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss, gap


before, losses, gaps = accuracy(params), [], []
for _ in range(150):
    params, opt_state, loss, gap = update(params, opt_state)
    losses.append(float(loss))
    gaps.append(float(gap))
after = accuracy(params)
print(f"accuracy on new samples {before:.3f} before, {after:.3f} after; loss {losses[0]:.3f} to {losses[-1]:.3f}")
print(f"largest relative gap of the 150 inner problems: {max(gaps):.1e}")
assert np.isfinite(losses).all() and after > 0.95 and after > before + 0.1
assert max(gaps) < 1e-2

# %%
problem, fit = machine(params, x, y)
u, v = np.meshgrid(np.linspace(-2.6, 2.6, 120), np.linspace(-2.6, 2.6, 120))
grid = jnp.asarray(np.stack([u.ravel(), v.ravel()], 1), jnp.float32)
values = np.asarray(jaxsvm.decision_function(fit, problem, features(params, grid))).reshape(u.shape)
figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
axes[0].plot(losses)
axes[0].set_xlabel("step of the network")
axes[0].set_ylabel("held-out loss")
axes[0].grid(alpha=0.3)
axes[1].contourf(u, v, np.clip(values, -2, 2), levels=21, cmap="RdBu", alpha=0.5)
axes[1].set_title("the machine in the plane of the points; support is ringed", fontsize=10)
axes[1].contour(u, v, values, levels=[-1, 0, 1], colors="0.2", linestyles=["--", "-", "--"])
for sign, colour in ((-1, "tab:red"), (1, "tab:blue")):
    axes[1].scatter(*np.asarray(x)[np.asarray(y) == sign].T, color=colour, s=12, label=f"y = {sign:+d}")
axes[1].scatter(*np.asarray(x)[fit.support].T, s=45, facecolors="none", edgecolors="black")
axes[1].legend(loc="lower right", fontsize=8)
plt.show()
print(f"{len(fit.support)} of {len(y)} samples are support")
assert len(fit.support) < len(y) / 4

# %% [markdown]
# **Learned.** A solver that certifies its answer can stand inside a network like any other layer: forward it solves a
# convex problem, backward it solves one linear system on the support. The last layer is at its optimum at every step,
# so the network learns features that an SVM separates with a margin, and few samples are support in the end.
