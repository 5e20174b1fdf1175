"""`memory://`: the rules under a mutex, for tests and as the model that other stores are compared with."""
