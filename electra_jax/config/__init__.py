"""Typed settings, command-line parsing and user errors, independent of what is configured."""
