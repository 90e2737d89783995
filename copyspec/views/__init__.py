"""Human-readable views of a run: where its text was copied from, what each forward pass did, how runs compare."""
