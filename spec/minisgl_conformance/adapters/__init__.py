"""Adapters: implementations as targets, each imported only when it is asked for."""
