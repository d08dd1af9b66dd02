"""SGLang programs of the user's own, whose generations are answered by lookahead reasoning."""
