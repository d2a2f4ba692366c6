"""Plans become rows, in this process or by Ray Data.

A block is embedded and written in one call, so a crash costs at most the current block. Its name follows from the
attempt and its ids, the token in a file's name from its content: an actor that seemed dead replaces nothing but its
equal. The driver counts one file of each block, and so does a job that resumes the run.

`max_reject_rate` is a share of all listed images, not of this run's: one new broken image fails no nightly run over a
million.
"""
