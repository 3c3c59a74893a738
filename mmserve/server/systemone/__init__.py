"""Many typed questions about one state, answered by probabilities and without generating text.

state  -+- question 0 -+- option        one prefix, seen once
        |              +- option        questions and options branch off
        +- question 1 -+- ...
"""
