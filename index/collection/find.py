"""Finds collections as users name them: by NAME=LOCATION, a location, or a folder of collections."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from index.collection.collection import Collection, is_collection
from index.errors import CollectionError, NotACollectionError
from index.storage import Storage

# A name has no slash or colon, so `s3://bucket/a=b` is a location.
_NAMED: Final = re.compile(r"([^/\\=:~]+)=(.+)")


def find_collections(arguments: Iterable[str]) -> dict[str, Collection]:
    """The collections that `arguments` name, by name, in the order given.

    An argument is the location of a collection, which is named after its folder; NAME=LOCATION; or a folder with
    collections as subfolders. Raises NotACollectionError if one names none, CollectionError if two have the same name.
    """
    collections: dict[str, Collection] = {}
    for argument in arguments:
        for name, collection in _named_by(argument):
            if name in collections:
                raise CollectionError(
                    f"two collections are called {name!r}: {collections[name].location} and {collection.location}. "
                    f"Give one another name, as in other={collection.location}"
                )
            collections[name] = collection
    return collections


def _named_by(argument: str) -> Iterator[tuple[str, Collection]]:
    if (match := _NAMED.fullmatch(argument)) and Storage.open(argument).info() is None:
        yield match[1], Collection.open(match[2])
        return
    try:
        single = Collection.open(argument)
    except NotACollectionError:
        several = list(_subfolders(Storage.open(argument)))
        if not several:
            raise
        yield from several
    else:
        yield single.name, single


def _subfolders(storage: Storage) -> Iterator[tuple[str, Collection]]:
    for entry in storage.list():
        inner = storage.subfolder(entry.name)
        if entry.is_folder and is_collection(inner):
            yield entry.name, Collection(inner)
