"""SGLang's own speculative decoding on a machine with no GPU: the operators that its CPU path
calls.

NGRAM, STANDALONE, EAGLE and EAGLE3 have a CPU path in SGLang that calls a dozen small operators,
but the published sgl-kernel package has these for GPUs only. `cache` has those that look up and
move rows of the KV cache, `trees` those that build trees of drafted tokens, `verify` those that
walk them.
"""
