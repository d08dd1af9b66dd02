"""Our additions to SGLang's frontend language: an executor without threads, steps, forks
and roles.
"""
