"""Turns plans into rows, in this process or with Ray Data.

A block is embedded and written in one call, so a crash costs at most the current block. The block's name is derived
from the attempt and its ids, and the token in the file's name from the content, so an actor that only seemed dead can
overwrite nothing but an identical file. The driver counts one file per block, and so does a job that resumes the run.

`max_reject_rate` is a share of all listed images, not of this run's, so one new broken image does not fail a nightly
run over a million.
"""
