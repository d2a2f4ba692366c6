"""Fetches the bytes of a picture by its URI.

The operator's own sources are trusted. Query URLs go through `FetchPolicy.for_untrusted_urls`: only http and https on
ports 80 and 443. For the URL and for each redirect, every address of the host is checked, and the connection is made to
a checked address. No credentials, cookies or proxies are used. Redirects, wire bytes, decompressed bytes and time are
limited.
"""

from embedder.fetch.fetcher import Fetcher as Fetcher
