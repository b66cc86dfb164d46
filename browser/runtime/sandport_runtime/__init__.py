"""The Python of Sandport that exists only under Pyodide: loop, stand-ins, streams, control, boot.

Invariant: importing this package imports neither `js` nor anything that holds a JavaScript object, so that a memory
snapshot can be taken with it imported. JavaScript comes in through one door, `sandport_runtime.boot.start(host)`.
"""
