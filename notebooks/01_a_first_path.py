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
# # A first path
#
# How hard should an SVM try to get every training sample right? That is what C says, and nobody knows it beforehand.
# Here 30 values of C are solved on one kernel matrix, each with a proof of its quality, and cross-validation chooses
# among them.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import jaxsvm
from jaxsvm import plots
from jaxsvm.datasets import Scaling, two_classes
from jaxsvm.kernels import RBF

x, labels = load_breast_cancer(return_X_y=True)
x_train, x_test, labels_train, labels_test = train_test_split(x, labels, stratify=labels, random_state=0)
scaling = Scaling.standardise(x_train)  # learnt from the training samples alone
x_train, x_test = scaling(x_train).astype(np.float32), scaling(x_test).astype(np.float32)
y, classes = two_classes(labels_train)
y_test = np.where(labels_test == classes[1], 1, -1)

# %% [markdown]
# A kernel makes a Gram operator, a Gram operator and labels make a problem. C comes later: one Gram operator serves
# every value of it.

# %%
gram = jaxsvm.gram(RBF(gamma=1 / 30), x_train)
problem = jaxsvm.svm_problem(gram, y)
Cs = np.geomspace(1e-3, 1e3, 30)
path = jaxsvm.solve_path(problem, Cs, tol=1e-3)
jaxsvm.check(path.fits)  # raises unless every single value is certified
assert len(path) == 30 and float(np.max(path.certificate.relative_gap)) <= 1e-3

# %%
found = jaxsvm.cross_validate(problem, Cs, folds=5)
print(
    f"the best mean score is at C = {found.C:.3g}; the smallest C within one standard error of it is "
    f"{found.C_one_standard_error:.3g}"
)
assert found.C_one_standard_error <= found.C

# %%
figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
plots.path_scores(found, ax=axes[0])
plots.path_margin(path, problem, ax=axes[1])
plots.path_support(path, ax=axes[2])
plt.show()

# %% [markdown]
# A small C keeps a wide margin and lets most samples lie inside it: nearly all are support vectors. A large C narrows
# the margin until few are left. On samples that took no part in any of this:

# %%
chosen = int(np.argmin(abs(Cs - found.C_one_standard_error)))
fit = path[chosen]
accuracy = float(np.mean(np.asarray(jaxsvm.predict(fit, problem.at(Cs[chosen]), x_test)) == y_test))
print(f"C = {Cs[chosen]:.3g}: {len(fit.support)} of {len(y)} samples are support, accuracy {accuracy:.3f}")
assert accuracy > 0.94

# %% [markdown]
# The margin `1 / |w|` shrinks as C grows: that is a theorem, not an impression.

# %%
w = np.sqrt([float(one.dual_coef @ (y * one.margins - one.bias)) for one in path])
assert (np.diff(w) > -1e-2 * w[:-1]).all()

# %% [markdown]
# **Learned.** A path costs a few fits, not thirty: the values share one kernel matrix, and what is solved at one C is
# the start of the next. The score is flat over a wide range of C; the smallest C within one standard error of the best
# is the cautious choice. And each of the thirty answers came with its own proof, so that the picture shows the
# SVM and not the patience of a solver.
