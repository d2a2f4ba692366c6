"""Reads the lines of text in pictures with RapidOCR, whose models (PP-OCRv6) come with its package.

Any picture may make it slow, large or crash, so it runs in processes like those that decode: each gets pixels of a
bounded number, and is killed at a deadline or a limit of memory.
"""
