"""Flax Linen modules: embeddings, encoders, heads, and the two networks of ELECTRA. No losses, devices or files here.

Letters at the end of a name give its shape: B batch, L length, E embedding, D width, H heads, K head size, F FFN width,
V vocabulary (padded), M masked positions.
"""
