"""Turns plans into rows, in this process or with Ray Data.

A block is written as soon as it is embedded, so a crash costs at most the current block; on Ray, the blocks of an
actor's current call: up to four of 256 pictures if it has a device such as a GPU, otherwise one. The block's name is
derived from the attempt and its ids, and the token in the file's name from the content, so an actor that only seemed
dead can overwrite nothing but an identical file. The driver counts one file per block, and so does a job that resumes
the run.

`max_reject_rate` is a share of all listed images, not of this run's, so one new broken image does not fail a nightly
run over a million.
"""
