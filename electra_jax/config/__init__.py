"""Typed settings, command lines and errors; independent of what is configured."""
