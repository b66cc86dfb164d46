"""Programs on the official Python SDK; each runs in an environment of its own, with the release it is there for."""
