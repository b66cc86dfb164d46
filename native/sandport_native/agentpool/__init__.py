"""Native MCP-over-ACP for stock agentpool 2.9.18. Needs the environment that has agentpool.

Invariant: no module of agentpool is patched; the add-on subclasses, wraps one handler per connection, and `guard`
checks each private place it relies on before anything starts.
"""
