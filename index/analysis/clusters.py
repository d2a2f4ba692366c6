"""Clusters of vectors, and names for them."""

from collections import Counter
from collections.abc import Mapping, Sequence

import faiss
import numpy as np
import numpy.typing as npt

from index.errors import QueryError

Floats = npt.NDArray[np.float32]
Clusters = npt.NDArray[np.int64]

_MIN_SHARE = 0.3  # of a cluster's images that a label needs to be in its name


def cluster(vectors: Floats, count: int) -> Clusters:
    """The cluster of each vector, `(n,)`, from 0, by spherical k-means. The same vectors have the same clusters."""
    if not 1 <= count <= len(vectors):
        raise QueryError(f"got {count} clusters for {len(vectors)} vectors: expected 1 to {len(vectors)}")
    kmeans = faiss.Kmeans(vectors.shape[1], count, spherical=True, seed=0, nredo=3, min_points_per_centroid=1)
    kmeans.train(np.ascontiguousarray(vectors))
    _, nearest = kmeans.index.search(np.ascontiguousarray(vectors), 1)
    return np.asarray(nearest[:, 0], np.int64)


def nearest_words(vectors: Floats, words: Mapping[str, Floats]) -> list[str]:
    """The nearest word of each vector, without training (zero-shot); `words` are vectors by their words.

    Compares differences from the means, as all pictures lie apart from words, and some words are near all pictures.
    """
    texts = np.stack(list(words.values()))
    scores = (vectors - vectors.mean(axis=0)) @ (texts - texts.mean(axis=0)).T
    names = list(words)
    return [names[best] for best in scores.argmax(axis=1)]


def cluster_names(clusters: Clusters, labels: Sequence[str | None]) -> list[str | None]:
    """The name of each image's cluster: its most common labels, or None. Clusters with the same labels are numbered."""
    names: dict[int, str | None] = {}
    for number in np.unique(clusters).tolist():
        inside = np.flatnonzero(clusters == number).tolist()
        counts = Counter(label for label in (labels[row] for row in inside) if label is not None)
        common = [label for label, count in counts.most_common(2) if count >= _MIN_SHARE * len(inside)]
        names[number] = " or ".join(common or [label for label, _ in counts.most_common(1)]) or None
    repeated = Counter(names.values())
    seen = Counter[str | None]()
    for number, name in names.items():
        seen[name] += 1
        if name is not None and repeated[name] > 1:
            names[number] = f"{name} {seen[name]}"
    return [names[number] for number in clusters.tolist()]
