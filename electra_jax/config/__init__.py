"""Typed settings, command lines and errors. Nothing here knows what is configured."""
