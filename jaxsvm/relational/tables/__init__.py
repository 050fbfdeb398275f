"""Tables as columns: readers, keys, types of SQL and Arrow."""
