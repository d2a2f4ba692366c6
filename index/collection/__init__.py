from index.collection.collection import Collection as Collection
from index.collection.writing import writing as writing
