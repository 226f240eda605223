"""The servers' own code, from their wheels, run against fp4aot."""
