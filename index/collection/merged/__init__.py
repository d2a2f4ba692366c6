"""Many small runs, such as those of nights and of `watch`, merged, so that no job opens a file for each.

What is merged are the facts of runs, and copies of their manifests; the runs, with their manifests, row files and
facts, stay as they are. `merged/<number>/` holds one such set: `runs.json`, with the manifests, and `facts/`, whose
rows say of which run they are. `merged/manifest.json` names the sets that count. Everything here can be made again from
the runs, so nothing is lost if it is removed.

- Which sets and runs become one is up to `policy.py`, like that of segments: there are at most three of a size, and a
  row is written again once for each factor of four by which its set has grown.
- Facts of runs with other columns or types go to files of their own, so a catalog finds the same columns and types as
  without merging.
- The commit is one atomic write, of `merged/manifest.json`, under the lease. Readers see either the runs or the set
  that stands for them, never both: a run that a set holds is not read from its own folder. A writer that was killed
  before the commit leaves a folder that nothing names. `prune` removes it after a day.
- A set that was merged into another stays for a day, for those who have begun to read it.
- Row files stay as small as they were written: vectors are read by file and position, only where they are needed, and
  versions of the index, reuse and annotations refer to them.
"""
