"""Finds collections by what people name them with: NAME=LOCATION, a location, or a folder of collections."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from index.collection.collection import Collection, is_collection
from index.errors import CollectionError, NotACollectionError
from index.storage import Storage

# So that `s3://bucket/a=b` is a location.
_NAMED: Final = re.compile(r"([^/\\=:~]+)=(.+)")


def find_collections(places: Iterable[str]) -> dict[str, Collection]:
    """The collections at `places`, by name, in their order.

    A place is a collection, which has its folder's name; NAME=LOCATION; or a folder with collections as subfolders.
    Raises NotACollectionError where there are none, and CollectionError for a name that two have.
    """
    found: dict[str, Collection] = {}
    for place in places:
        for name, collection in _at(place):
            if name in found:
                raise CollectionError(
                    f"two collections are called {name!r}: {found[name].location} and {collection.location}. Give one "
                    f"another name, as in other={collection.location}"
                )
            found[name] = collection
    return found


def _at(place: str) -> Iterator[tuple[str, Collection]]:
    if (named := _NAMED.fullmatch(place)) and Storage.open(place).info() is None:
        yield named[1], Collection.open(named[2])
        return
    try:
        single = Collection.open(place)
    except NotACollectionError:
        several = list(_below(Storage.open(place)))
        if not several:
            raise
        yield from several
    else:
        yield single.name, single


def _below(storage: Storage) -> Iterator[tuple[str, Collection]]:
    for entry in storage.list():
        inner = storage.subfolder(entry.name)
        if entry.is_folder and is_collection(inner):
            yield entry.name, Collection(inner)
