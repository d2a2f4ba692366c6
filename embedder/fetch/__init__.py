"""The bytes of a picture, by its URI.

The operator's own sources are trusted. Query URLs go through `FetchPolicy.for_untrusted_urls`: http and https on ports
80 and 443 only, every address of a name checked, and the connection made to the very address that was checked, again at
each redirect; no credentials, cookies or proxies; limits on redirects, wire bytes, decompressed bytes and time.
"""

from embedder.fetch.fetcher import Fetcher as Fetcher
