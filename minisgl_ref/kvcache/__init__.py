"""Where cached KV is: the prefix caches that say which pages, and the pool that holds them.

Chapter: spec/02-radix-tree.md
"""
