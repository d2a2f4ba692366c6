"""Protection around the app, the same under uvicorn and on Ray Serve.

There are three limits: on searches, 16 per core, because the last one admitted waits for all before it; on fetches of
URLs, which only wait; and on requests of all kinds, 64 more than these two together. If possible, a search is refused
before its body is read: it reserves a slot, for one second, while its body is on its way. A batch needs as many free
slots as it has queries, or half of all slots. A request that takes too long is answered, but keeps its slot until its
work ends.

Without keys, index versions can be changed only from this machine, and neither through a proxy that identifies itself
nor from another site's page. `api/access/caller_addresses.py` distinguishes callers: an IPv6 caller is a /64.
"""
