"""Locks, state and workflows on relational databases: statements written once, and one dialect object per database."""
