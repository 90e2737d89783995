"""copyspec inside other engines, beside what those engines have themselves."""
