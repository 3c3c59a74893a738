"""Random programs of the language: as data, as text, on a state, and by a naive interpreter.

draw -> tree --+-> body     the language itself: queues, threads, forks that overlap
               +-> naive    one statement after the other, prompts as strings
"""
