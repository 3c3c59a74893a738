"""OpenAI's surfaces: chat, completions, files."""
