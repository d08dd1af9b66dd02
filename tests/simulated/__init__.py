"""Runtimes that wait instead of computing, with a given speed and acceptance rate instead of
models, on the real or on a virtual clock. For tests and benchmarks; not installed.

A step is words of the pocket tokenizer, one token each. Its first eight words encode question,
position, version and meaning, so that a runtime needs no memory, and a judge reads from two texts
whether they agree. Draws follow from seed, question, position and version: whether a draft agrees
does not depend on timing, clock or process. Memory, network and the token layer are not simulated.

``scheduler`` has SGLang's scheduler with times of its passes, and ``alike`` texts that agree token by
token, with a token layer: with ``scheduled.scheduled_roles`` the real programs run on a GPU's times.

``python -m tests.simulated`` serves them over HTTP; ``transport.simulated_roles`` makes backends in
this process.
"""
