"""What a benchmark varies, and in which order it measures: plain data, no runtimes."""
