"""`sqlite:///file.db`: many processes on one file of one host."""
