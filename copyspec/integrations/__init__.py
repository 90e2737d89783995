"""copyspec inside other engines. Each integration imports its engine only when it is used."""
