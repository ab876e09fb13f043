"""The journal on disk: records, SQL, the mark, snapshots; written by one thread."""
