"""Tests of the store in Redis, on real servers."""
