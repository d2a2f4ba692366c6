"""Columns that predictors add to the images of a collection.

An annotation is embedding once more: a plan of what is new or changed for the predictor's fingerprint, blocks that are
written as they are done, rejects with a reason, a commit. Its rows are in runs of their own
(`index.collection.annotations`), and the next version of the index has their columns beside its segments' rows. A name,
and all that begins with `<name>_`, belongs to one annotation.
"""
