"""Which version is live, which ones may go live, and which ones may be removed.

A version that was rolled back is marked, and goes live only by `promote`. While CURRENT is lost, the newest good
version is served; the next build repairs CURRENT. `prune.py` decides which versions and runs stay.

Index files of buckets are cached on local disk under their SHA-256, so all replicas on a machine share one download. A
version is opened through links, so a file that is removed to make room stays readable while it is open.
"""
