"""Runs a user's SGLang programs with lookahead reasoning for their generations."""
