"""Tests that measure: scripts/test.sh runs them when the others have ended."""
