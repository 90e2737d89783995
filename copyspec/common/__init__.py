"""What every room may use: checks of arguments, files, locks."""
