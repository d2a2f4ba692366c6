from index.search.searcher import Searcher as Searcher
