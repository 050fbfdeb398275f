"""The stop rule of held-out samples, as a callback and as an option of the estimator."""

import dataclasses

import numpy as np
import pytest

import jaxsvm
from jaxsvm.estimators import SBPClassifier
from jaxsvm.kernels import RBF, Precomputed
from jaxsvm.loop import bursts


def clouds(n):
    """Two clouds that overlap."""
    random = np.random.default_rng(0)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    return random.normal(size=(n, 2)) + 0.9 * y[:, None], y


def test_a_fit_ends_at_twice_the_steps_of_the_lowest_held_out_error():
    """The errors noted are those of the margins by NumPy, and the fit ends at the first call that the rule names."""
    x, y = clouds(300)
    mask, K = np.arange(300) % 4 == 0, np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(-1))
    problem = jaxsvm.slack_problem(jaxsvm.gram(RBF(0.5), x), y, 0.05, sample_weight=~mask)
    held, seen = jaxsvm.HeldOut(mask, least=300), []

    def both(fit):
        decision = K @ np.asarray(fit.dual_coef) + float(fit.bias)
        seen.append((int(fit.steps), float((y * decision <= 0)[mask].mean())))
        return held(fit)

    fit = jaxsvm.fit(problem, jaxsvm.StochasticBatchPerceptron(20_000, tol=1e-9), callback=both)
    assert fit.status.name == "INTERRUPTED" and held.ended and dict(seen) == held.errors
    steps, errors = np.array(seen).T
    due = [k >= max(300, 2 * steps[: i + 1][errors[: i + 1].argmin()]) for i, k in enumerate(steps)]
    assert due[-1] and not any(due[:-1]) and int(fit.steps) == steps[-1]


def test_an_estimator_that_stops_early_takes_fewer_steps_and_holds_out_what_it_was_told():
    x, y = clouds(400)
    whole, early = (
        SBPClassifier(steps=4000, tol=1e-9, random_state=0, early_stopping=early) for early in (False, True)
    )
    whole.fit(x, y), early.fit(x, y)
    assert early.fit_status_ == 0 and early.n_iter_[0] < whole.n_iter_[0] == 4000
    assert early.score(x, y) > whole.score(x, y) - 0.03
    assert len(early.support_) <= 360  # a tenth is in no draw


@pytest.mark.parametrize("mask", [np.zeros(3, bool), np.arange(3)])
def test_a_mask_that_holds_out_nothing_is_refused(mask):
    with pytest.raises(jaxsvm.InputError, match="mask is"):
        jaxsvm.HeldOut(mask)


def test_a_large_precomputed_matrix_shows_the_current_margins_at_every_chunk(monkeypatch):
    """Of a matrix that no kernel vouches for nothing is certified then, but margins are known."""
    x, y = clouds(300)
    little = dataclasses.replace(bursts.MEASURED, samples_of_a_small_problem=100)
    monkeypatch.setattr(bursts, "MEASURED", little)
    mask, K = np.arange(300) % 4 == 0, np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(-1))
    problem = jaxsvm.slack_problem(jaxsvm.gram(Precomputed(), K), y, 0.05, sample_weight=~mask)
    held, gaps = jaxsvm.HeldOut(mask, patience=100.0), []
    solver = jaxsvm.StochasticBatchPerceptron(2000, tol=1e-9)
    jaxsvm.fit(problem, solver, callback=lambda fit: gaps.append(float(fit.certificate.relative_gap)) or held(fit))
    assert list(held.errors) == list(range(100, 2001, 100))
    assert np.isinf(gaps).any() and len(set(held.errors.values())) > 2
