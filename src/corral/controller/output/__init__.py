"""What jobs print and tell: kept in the spool, read by whoever watches."""
