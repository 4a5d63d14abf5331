"""Small helpers without a feature."""
