"""A model behind a URL: requests to servers with OpenAI's API, and their answers as results."""
