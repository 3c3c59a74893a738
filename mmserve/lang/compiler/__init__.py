"""Compiled programs: what a program's text and a batch's rows tell, used to answer sooner.

source    which parameters become media, and in which order arguments reach the prompt
grouping  rows with the same media and prefixes start side by side
hoist     the prefix that rows share is computed once, before they call
plan      the three of them

Never changed: prompts, sampling values, seeds, which answer goes where, a body's effects. The
body is not run to learn about it.
"""

from mmserve.lang.compiler.plan import Gate, Plan

__all__ = ["Gate", "Plan"]
