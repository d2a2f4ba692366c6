"""Segments: exact vectors mapped from disk, their rows, and optionally an approximate index.

A segment has an approximate index if a scan would exceed the target latency: inverted lists with 4-bit product
quantizers over the principal dimensions (`PCAR48,IVF1000,PQ48x4fsr`). Its candidates are ranked by 8-bit vectors in
memory, unless `--max-memory` forbids them, and then by the exact vectors, so a score is always the cosine. The PCA
keeps 9/10 of the variance, in at most 160 dimensions, and rotates them.
"""
