"""Lookahead reasoning as a service: an OpenAI-compatible endpoint over a deployment's runtimes
(docs/serving.md).
"""
