"""A tiny ACP-like agent for gateway tests: each request's method says what to do. Standard library only."""

import json
import os
import signal
import subprocess
import sys


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, params, request = message["method"], message.get("params") or {}, message.get("id")
        result: object = {}
        if method == "echo":
            result = params
        elif method == "big":
            # The whole line, newline not counted, has exactly this many bytes.
            frame = len(json.dumps({"jsonrpc": "2.0", "id": request, "result": {"text": ""}}))
            result = {"text": "x" * (params["bytes"] - frame)}
        elif method == "pid":
            result = {"pid": os.getpid(), "pgid": os.getpgid(0), "gateway": os.getppid()}
        elif method == "exit":
            print(params.get("words", "going down"), file=sys.stderr, flush=True)
            os._exit(params["status"])
        elif method == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            ignore = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            code = ignore + "print(1, flush=True)\ntime.sleep(600)"
            child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            assert child.stdout is not None
            child.stdout.readline()
            result = {"child": child.pid}
        elif method == "escape":
            # A grandchild in a session of its own, whose parent is gone: as MCP clients start servers, and worse.
            ignore = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            code = ignore + "print(1, flush=True)\ntime.sleep(600)"
            middle = (
                "import subprocess, sys\n"
                f"child = subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session=True,"
                " stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)\n"
                "child.stdout.readline()\nprint(child.pid)"
            )
            result = {"child": int(subprocess.check_output([sys.executable, "-c", middle], start_new_session=True))}
        elif method == "start":
            # As clients of the MCP SDK start a server: in a session of its own, with an environment of a few names.
            ignore = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            child = subprocess.Popen(
                [sys.executable, "-c", ignore + "print(1, flush=True)\ntime.sleep(600)"],
                start_new_session=True,
                stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"]},
            )
            assert child.stdout is not None
            child.stdout.readline()
            result = {"child": child.pid}
        elif method == "stderr":
            for number in range(params["lines"]):
                print(f"{params['text']} {number}", file=sys.stderr, flush=True)
        elif method == "environment":
            result = dict(os.environ)
        elif method == "noise":
            print("a banner that is no message", flush=True)
        elif method == "big-request":
            print(
                json.dumps({"jsonrpc": "2.0", "id": "r1", "method": "fs/x", "params": "y" * params["bytes"]}),
                flush=True,
            )
            result = json.loads(sys.stdin.readline())
        elif method == "deaf":
            signal.pause()
        if request is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": request, "result": result}), flush=True)


main()
