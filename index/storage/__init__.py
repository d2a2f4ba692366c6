"""A folder or a bucket, behind one interface.

An object is put in one request, or in parts that stay invisible until all are there. A pickled storage is only its
address: credentials are read from the environment where it is opened. A source is listed in parallel, in ranges of
names that are cut as they are listed; on Azure, which cannot begin at a name, by folders.
"""

from index.storage.storage import Storage as Storage
