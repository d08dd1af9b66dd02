"""Access to one runtime: requests over HTTP, their cancellation, its slots, and its tokenizer."""
