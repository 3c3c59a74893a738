"""Conversations as several surfaces read and tell them, so that no surface needs another.

    messages, parts -> turns        tools -> Tools -> reader of an answer -> deltas
    the fields around -> Envelope   a chat body -> ChatCall

Called by `openai`, `anthropic`, `systemone`, `native` and `page`, which are strangers.
"""
