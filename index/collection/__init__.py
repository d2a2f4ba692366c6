from index.collection.collection import Collection as Collection
from index.collection.collection import writing as writing
