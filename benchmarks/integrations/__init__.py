"""copyspec inside other engines, compared with their own drafters."""
