"""Measurements that can be rerun by one command each."""
