"""What lr-sglang adds to SGLang's frontend language: an executor without threads, steps, forks and roles."""
