"""Cache of samples in memory that all processes of a node share."""
