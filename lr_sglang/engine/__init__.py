"""SGLang programs on one event loop: states without threads, asynchronous runtimes, and a clock that can jump."""
