"""The store: a partitioned tensor on disk, its locks and its staging folder."""
