"""The demo agent for agentpool: its configuration, and the script of `sandport_demo` as a model."""
