"""Pure functions from (parameters, batch, key) to a loss and its metrics, and the masking and sampling they share."""
