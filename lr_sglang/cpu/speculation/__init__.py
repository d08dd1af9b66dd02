"""SGLang's own speculative decoding on a machine with no GPU: what its CPU path expects of a kernel library.

NGRAM, STANDALONE, EAGLE and EAGLE3 have a CPU path in SGLang that calls a dozen small operators; the
library that the registry has holds them for GPUs only. `cache` has those that look up and move rows of the KV cache,
`trees` those that build trees of drafted tokens, `verify` those that walk them.
"""
