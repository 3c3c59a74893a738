"""The web page at `/`, and what it shows of prompts."""
