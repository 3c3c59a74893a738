"""Anthropic's Messages API: conversations, tools and counts of tokens in its form."""
