"""The copy benchmark: other projects' own drafting code beside copyspec's, on recorded outputs of real models."""
