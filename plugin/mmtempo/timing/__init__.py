"""Iteration times: statistics, stalls and their causes."""
