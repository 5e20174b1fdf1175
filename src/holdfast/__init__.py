"""Durable concurrency for Python."""
