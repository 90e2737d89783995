"""What a draft costs, and what drafters beside copying bring."""
