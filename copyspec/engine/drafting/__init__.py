"""What drafts beside the copies: models, datastores, earlier outputs."""
