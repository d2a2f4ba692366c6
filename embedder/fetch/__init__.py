from embedder.fetch.fetcher import Fetcher as Fetcher
