"""What a person sees of a run: where its text was copied from, what each pass did, how it compares."""
