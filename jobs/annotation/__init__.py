"""Columns that predictors add to the images of a collection.

Annotating works like embedding: it plans what is new or changed for the predictor's fingerprint, writes each block when
it is done, records rejects with a reason, and commits. The rows are in separate runs (`index.collection.annotations`),
and the next index version has their columns beside its segments' rows. A name, and every column that starts with
`<name>_`, belongs to one annotation.
"""
