"""The apply set: edits of files in the forms that agents write, and what their application must give."""
