"""What the HTML views cost a browser, and whether everybody can read them."""
