"""Documents of other kinds as text to search: what their paragraphs, headings and pages say."""
