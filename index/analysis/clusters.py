"""Clusters of vectors, and names for them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import faiss
import numpy as np
import numpy.typing as npt

from index.errors import QueryError
from index.words.text import words_of

Floats = npt.NDArray[np.float32]
Clusters = npt.NDArray[np.int64]

_SEEDS = 2_048  # vectors that are merged one by one
_LARGEST = 3  # times the mean, of the clusters that the others are moved from
_ROUNDS = 10
_MIN_SHARE = 0.3  # of a cluster's images that a label or a word needs to be in its name
_WORDS = 3
_PRODUCTS = 1 << 22  # cosines in memory
_MIN_LIFT = 1.5  # how many times as frequent in a cluster as everywhere a word has to be


def cluster(vectors: Floats, count: int) -> tuple[Floats, Clusters]:
    """The centres of clusters, `(count, dim)`, unit norm, the largest cluster first, and the nearest of each vector.

    Spherical k-means from the clusters of a sample by Ward's method ("Buckshot": Cutting et al., Scatter/Gather, SIGIR
    1992), none of them larger than three times the mean, so that a crowd is divided. The same vectors have the same
    clusters. QueryError if there are fewer vectors.
    """
    if not 1 <= count <= len(vectors):
        raise QueryError(f"got {count} clusters for {len(vectors)} vectors: expected 1 to {len(vectors)}")
    vectors = np.ascontiguousarray(vectors)
    sample = np.random.default_rng(0).permutation(len(vectors))[: max(_SEEDS, count)]
    centres = spherical_kmeans(vectors, count, _merged(vectors[np.sort(sample)], count))
    nearest = nearest_of(vectors, centres)[1]
    order = np.argsort(-np.bincount(nearest, minlength=count), kind="stable")
    return centres[order], np.argsort(order)[nearest]


def spherical_kmeans(vectors: Floats, count: int, start: Floats | None = None) -> Floats:
    """The centres of `count` clusters, `(count, dim)`, unit norm. The same vectors have the same centres."""
    bounds = {"min_points_per_centroid": 1, "max_points_per_centroid": len(vectors)}
    kmeans = faiss.Kmeans(vectors.shape[1], count, spherical=True, niter=_ROUNDS, seed=0, **bounds)
    kmeans.train(vectors, init_centroids=start)
    return kmeans.centroids  # type: ignore[no-any-return]


def nearest_of(vectors: Floats, others: Floats) -> tuple[Floats, Clusters]:
    """The best cosine of each vector with the others, and which of them it is."""
    scores, best = np.empty(len(vectors), np.float32), np.empty(len(vectors), np.int64)
    rows = max(1, _PRODUCTS // len(others))
    for start in range(0, len(vectors), rows):
        products = vectors[start : start + rows] @ others.T  # in half of the time that `faiss.knn` takes, or a quarter
        part = best[start : start + rows] = products.argmax(axis=1)
        scores[start : start + rows] = products[np.arange(len(part)), part]
    return scores, best


def _merged(vectors: Floats, count: int) -> Floats:
    """The means of `count` clusters, which begin as single vectors and of which the two are merged that this moves
    least from their mean (Ward, 1963), unless they are too large together.
    """
    number = len(vectors)
    means, sizes = vectors.copy(), np.ones(number, np.float32)
    costs = 1 - means @ means.T
    np.fill_diagonal(costs, np.inf)
    for _ in range(number - count):
        one, other = divmod(int(costs.argmin()), number)
        total = sizes[one] + sizes[other]
        means[one] = (sizes[one] * means[one] + sizes[other] * means[other]) / total
        sizes[one], sizes[other] = total, 0
        possible = (sizes > 0) & (sizes + total <= max(2, _LARGEST * number / count))
        possible[one] = False
        moved = ((means - means[one]) ** 2).sum(axis=1) * sizes * total / (sizes + total)
        costs[one] = costs[:, one] = np.where(possible, moved, np.inf)
        costs[other] = costs[:, other] = np.inf
    merged: Floats = means[sizes > 0]
    return merged


def nearest_words(vectors: Floats, words: Mapping[str, Floats]) -> list[str]:
    """The nearest word of each vector, without training (zero-shot); `words` are vectors by their words.

    Compares differences from the means, as all pictures lie apart from words, and some words are near all pictures.
    """
    texts = np.stack(list(words.values()))
    scores = (vectors - vectors.mean(axis=0)) @ (texts - texts.mean(axis=0)).T
    names = list(words)
    return [names[best] for best in scores.argmax(axis=1)]


def common_labels(clusters: Clusters, labels: Sequence[str | None], count: int) -> list[str]:
    """The most common labels in each of `count` clusters, joined by "or"; "" where there are none."""
    names = []
    for inside in _members(clusters, count):
        counts = Counter(label for label in (labels[row] for row in inside) if label)
        common = [label for label, number in counts.most_common(2) if number >= _MIN_SHARE * len(inside)]
        names.append(" or ".join(common or [label for label, _ in counts.most_common(1)]))
    return names


def distinctive_words(clusters: Clusters, texts: Sequence[str | None], count: int) -> list[str]:
    """Up to three words of each cluster's texts that are frequent there and rarer elsewhere, the most telling first: by
    their share in the cluster times the logarithm of how many times as frequent they are; "" where there are none.
    """
    words = [set(words_of(text or "")) for text in texts]
    everywhere = Counter(word for each in words for word in each)
    names = []
    for inside in _members(clusters, count):
        shares = {
            word: number / len(inside)
            for word, number in Counter(word for row in inside for word in words[row]).items()
            if number >= _MIN_SHARE * len(inside)
        }
        lifts = {word: share * len(texts) / everywhere[word] for word, share in shares.items()}
        telling = {word: shares[word] * np.log(lift) for word, lift in lifts.items() if lift >= _MIN_LIFT}
        names.append(", ".join(sorted(telling, key=lambda word: (-telling[word], word))[:_WORDS]))
    return names


def distinct_names(names: Iterable[str]) -> list[str]:
    """The names, each once: equal ones are numbered, and "" is replaced by the cluster's number, from 1."""
    named = [name or str(number) for number, name in enumerate(names, 1)]
    repeated, seen = Counter(named), Counter[str]()
    distinct = []
    for name in named:
        seen[name] += 1
        distinct.append(f"{name} {seen[name]}" if repeated[name] > 1 else name)
    return distinct


def _members(clusters: Clusters, count: int) -> list[list[int]]:
    """The rows of each cluster."""
    order = np.argsort(clusters, kind="stable")
    return [part.tolist() for part in np.split(order, np.searchsorted(clusters[order], np.arange(1, count)))]
