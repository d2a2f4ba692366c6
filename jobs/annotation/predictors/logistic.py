"""Trains a linear head on few judged vectors: regularised logistic regression, whose score is a probability."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_PENALTY = 0.1
"""Of the squared weights, for vectors at a mean squared distance of 1 from their mean."""
_BACKGROUND = 5.0
"""The weight of all unjudged vectors together, in examples: enough to say what few examples cannot, that an image is
rarely what somebody looks for (Elkan and Noto, 2008), and little beside many."""
_TOLERANCE = 1e-10
_MIN_SLOPE = 0.01


def sigmoid(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """The logistic function, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * logits))  # type: ignore[no-any-return]


def train_head(
    judged: npt.NDArray[np.float32], is_positive: npt.NDArray[np.bool_], background: npt.NDArray[np.float32]
) -> tuple[Vector, float]:
    """Weights, `(dim,)`, and bias of the log-odds that a vector is positive, if vectors come as the judged ones do.

    `judged`, `(n, dim)`, has both kinds, which count equally; `background`, `(m, dim)`, is a sample of all vectors. The
    same input gives the same head. Probabilities are those of Platt (1999), fitted to the logits that each example gets
    from the others: leaving one out is one Newton step from the solution (Cawley and Talbot, 2008).
    """
    count, positives = len(judged), int(is_positive.sum())
    vectors = np.concatenate([judged, background]).astype(np.float64)
    mean = vectors.mean(axis=0)
    features = np.column_stack([vectors - mean, np.ones(len(vectors))])
    spread = float(np.mean(np.sum(features[:, :-1] ** 2, axis=1)))
    targets = np.concatenate([is_positive, np.zeros(len(background))])
    each = np.where(is_positive, 0.5 * count / positives, 0.5 * count / (count - positives))
    importance = np.concatenate([each, np.full(len(background), _BACKGROUND / max(1, len(background)))])
    penalty = np.append(np.full(len(mean), max(_PENALTY * spread, _TOLERANCE)), 1e-6)
    weights, hessian = _minimise(features, targets, importance, penalty)

    logits = features[:count] @ weights
    leverage = np.einsum("ij,ji->i", features[:count], np.linalg.solve(hessian, features[:count].T))
    chance = sigmoid(logits)
    alone = np.maximum(1 - leverage * each * chance * (1 - chance), 1e-6)
    left_out = logits + leverage * each * (chance - is_positive) / alone
    smoothed = np.where(is_positive, (positives + 1) / (positives + 2), 1 / (count - positives + 2))
    centre = left_out.mean()
    centred = np.column_stack([left_out - centre, np.ones(count)])
    (slope, shift), _ = _minimise(centred, smoothed, np.ones(count), np.full(2, 1e-6))
    slope = max(slope, _MIN_SLOPE)  # examples that their vectors do not tell apart must not turn the order round
    return slope * weights[:-1], float(slope * (weights[-1] - weights[:-1] @ mean - centre) + shift)


def _minimise(features: Vector, targets: Vector, importance: Vector, penalty: Vector) -> tuple[Vector, Vector]:
    """The weights of a logistic regression by Newton's method, and the Hessian there."""
    weights = np.zeros(features.shape[1])

    def loss(weights: Vector) -> float:
        logits = features @ weights
        return float(importance @ (np.logaddexp(0, logits) - targets * logits) + 0.5 * penalty @ weights**2)

    while True:
        chance = sigmoid(features @ weights)
        gradient = features.T @ (importance * (chance - targets)) + penalty * weights
        hessian = (features.T * (importance * chance * (1 - chance))) @ features + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        gain, size = float(gradient @ step), 1.0
        if gain < _TOLERANCE:
            return weights, hessian
        before = loss(weights)
        while loss(weights - size * step) > before - 1e-4 * size * gain:
            size /= 2
        weights = weights - size * step
