"""Values that many processes change without losing anything, and locks that live in such values."""
