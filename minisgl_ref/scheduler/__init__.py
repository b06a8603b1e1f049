"""The host side: who is admitted, which pages are taken, what is launched, processed and released.

Chapter: spec/05-prefill-and-chunking.md, spec/06-decode-and-release.md
"""
