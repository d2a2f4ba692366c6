"""The words of text columns, and the rows that have them.

A word is folded: without case and accents. Scripts without spaces have a word for each character, and what is written
together in a query is a phrase. Each block of 65,536 rows has, for each column, its sorted words, and for each word the
rows and the places in their text, as Arrow's lists: three bytes for an occurrence, mapped from disk and searched with
NumPy. So a block is built in bounded memory, copied when its text has not changed, and scored within the processor's
cache. Rows that do not belong to a segment are put in a block when a filter asks for their words: there is one way to
find words.

Rows are ranked by BM25 (Robertson and Zaragoza, 2009), with the statistics of all segments. Rare words come first;
common ones are only looked up for the rows that can still be among the best (MaxScore; Turtle and Flood, 1995). A first
bound is what enough rows get from one rare word. Of words in few rows, several blocks are ranked at once.
"""
