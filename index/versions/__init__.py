"""Which version is live, which may be, and what may go.

A version that was rolled back is marked and goes live only by `promote`. While CURRENT is lost, the newest good version
is served, and the next build repairs it. `prune` keeps the newest good versions, those superseded within the hour, and
the last one that was below its target. A stopped run goes a day after its last file if a later run took over, else
after a month; committed runs stay whole, since all versions are built from them.

Index files of buckets are kept on local disk under their SHA-256, one download for all replicas of a machine. A version
is opened through links, so a file that is removed to make room stays readable for those that have it open.
"""
