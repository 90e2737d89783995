"""Stand-ins and reports that tests and benchmarks share; neither of the two imports the other."""
