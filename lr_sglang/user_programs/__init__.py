"""Asks for answers: makes their requests, and runs any SGLang program with lookahead reasoning for
its generations.
"""
