"""Everything compiled: a C++ library with a plain C interface, and `native`, which loads it.

The sources are beside this file; `hdnn.h` is the interface, docs/internals.md the tour.
"""
