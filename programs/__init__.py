"""Reasoning programs in SGLang's frontend language, each readable on one screen."""
