"""Sandport's own ACP agent, made to run where there is no socket, process or thread: in a page's worker, under Pyodide.

It is an ACP agent on the official SDK, its loop is pydantic-ai's, and its tools are those that its ACP client lends it
through the ACP channel itself. `sandport_inpage.api` is what other hosts use; what is special to the page is in `boot`,
`_control` and `_page`. Nothing is imported here: `boot.prepare` puts stand-ins in place before the first import.
"""
