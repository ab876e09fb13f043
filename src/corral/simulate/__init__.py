"""A cluster in virtual time: the real scheduler on a described cluster, beside plain ones."""
