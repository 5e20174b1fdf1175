"""`postgresql://`: many processes on many hosts, by the server's clock."""
