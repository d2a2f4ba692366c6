"""Which version is live, which may be, and what may go.

A version that was rolled back is marked and goes live only by `promote`. While CURRENT is lost, the newest good version
is served, and the next build repairs it. `prune.py` says which versions and runs stay.

Index files of buckets are kept on local disk under their SHA-256, one download for all replicas of a machine. A version
is opened through links, so a file that is removed to make room stays readable for those that have it open.
"""
