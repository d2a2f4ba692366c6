"""A folder or a bucket, behind one interface.

An object appears complete or not at all. A pickled storage is only its address; credentials outside the address are
read from the environment where it is opened. Sources are listed in parallel, by ranges of names; on Azure by folders.
"""

from index.storage.storage import Storage as Storage
