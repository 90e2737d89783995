"""Browser cost and accessibility of the HTML views."""
