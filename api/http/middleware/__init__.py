"""Protection around the app, the same under uvicorn and on Ray Serve.

Three limits: searches, 16 for each core, because the last one admitted waits for all before it; fetches of URLs, which
only wait; and requests of all kinds, 64 more than these two. A search is refused before its body is read if that can be
known. A place is reserved for a second for a body on its way. A batch needs as many free places as it has queries, or
half of all. A request that takes too long is answered, and keeps its place until its work ends.

Without keys, versions can be changed only from this machine, and neither through a proxy that identifies itself nor
from another site's page. Callers are told apart by `api/access/caller_addresses.py`: an IPv6 caller is a /64.
"""
