"""A cache of samples in memory that all worker processes share."""
