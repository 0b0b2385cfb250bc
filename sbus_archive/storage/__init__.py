"""Where an archive is stored: in a directory, or in an object store.

An object store has no rename, no lock and no directory that can be synced. Segments never change, and the index entry of a segment is
written last, so each object can be written once and in any order of time between hosts.
"""
