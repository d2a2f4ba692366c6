from index.storage.storage import Storage as Storage
