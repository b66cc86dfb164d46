"""The gateway as a real process with real sockets and a real agent process behind each."""

from __future__ import annotations

import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sandport_native.gateway import tls
from sandport_native.gateway.server import DESCRIPTORS

from . import load
from .certificates import Certificate, certificate
from .conftest import ECHO, RunningGateway, alive, free_port, gone, run_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

KIB = 1024


def proc(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


async def refused(gateway: RunningGateway, **options: object) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as info:
        async with gateway.socket(**options):
            pass
    response = info.value.response
    return response.status_code, bytes(response.body or b"").decode()


class TestDoor:
    """Z01, Z02, Z04: foreign pages, wrong tokens and foreign hosts get 403 before the upgrade, and no agent starts."""

    async def test_foreign_origin_from_loopback(self, gateway: RunningGateway) -> None:
        assert (await refused(gateway, origin="http://evil.example"))[0] == 403
        assert (await refused(gateway, origin="null"))[0] == 403

    async def test_token(self, gateway: RunningGateway) -> None:
        async with run_gateway() as other:
            assert other.token != gateway.token
            assert (await refused(gateway, subprotocols=["acp.v1", f"sandport.token.{other.token}"]))[0] == 403
        assert (await refused(gateway, subprotocols=["acp.v1"]))[0] == 403
        assert (await refused(gateway, subprotocols=None))[0] == 403
        assert (await refused(gateway, subprotocols=["acp.v1", "sandport.token.wrong"]))[0] == 403

    async def test_foreign_host(self, gateway: RunningGateway) -> None:
        # websockets sets Host itself, so say it by hand.
        stream = await anyio.connect_tcp("127.0.0.1", gateway.port)
        async with stream:
            await stream.send(
                b"GET /acp HTTP/1.1\r\nHost: rebound.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
                + f"Sec-WebSocket-Protocol: acp.v1, sandport.token.{gateway.token}\r\n\r\n".encode()
            )
            assert (await stream.receive()).startswith(b"HTTP/1.1 403 ")

    async def test_null_origin_when_allowed(self) -> None:
        async with run_gateway("--allow-origin", "null") as gateway, gateway.socket(origin="null") as socket:
            assert (await socket.request("echo", {"a": 1}))["result"] == {"a": 1}

    async def test_refusals_start_no_agent_and_logs_hold_no_token(self, gateway: RunningGateway) -> None:
        await refused(gateway, origin="http://evil.example")
        await refused(gateway, subprotocols=["acp.v1", "sandport.token.wrong-token-of-someone"])
        async with gateway.socket() as socket:
            await socket.request("stderr", {"lines": 1, "text": f"agent saw {gateway.token}"})
            line = await gateway.wait_log("agent saw")
        log = "\n".join(gateway.log)
        assert line.rstrip().endswith("agent saw *** 0")
        assert gateway.token not in log
        assert "wrong-token-of-someone" not in log
        assert log.count("started (pid") == 1
        assert "ERROR" not in log  # a refusal is no mistake of ours
        arguments = proc(gateway.process.pid, "cmdline").decode()
        assert gateway.token not in arguments

    async def test_only_the_plain_subprotocol_is_echoed(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            assert socket.connection.subprotocol == "acp.v1"

    async def test_too_many_sockets(self) -> None:
        async with run_gateway("--max-sockets", "1") as gateway, gateway.socket() as socket:
            await socket.request("echo", {})
            status, text = await refused(gateway)
            assert status == 503
            assert "--max-sockets" in text

    async def test_remote_host_needs_the_flag(self) -> None:
        done = await anyio.run_process(
            [sys.executable, "-m", "sandport_native", "serve", "--host", "0.0.0.0", "--agent", ECHO],
            check=False,
        )
        assert done.returncode == 1
        assert b"--allow-remote" in done.stderr


class TestWhy:
    """POST /acp: why the socket of a page did not open, which browsers hide from it. The same door as the socket's."""

    async def why(self, gateway: RunningGateway, token: str, query: str = "", origin: str = "") -> tuple[int, str]:
        headers = f"Authorization: Bearer {token}\r\nOrigin: {origin or gateway.origin}\r\nContent-Length: 0\r\n"
        return await answer(gateway, f"POST /acp{query}", headers)

    async def test_each_refusal_has_its_words(self) -> None:
        async with run_gateway("--max-sockets", "1") as gateway:
            assert (await self.why(gateway, gateway.token))[0] == 426
            status, text = await self.why(gateway, "wrong")
            assert (status, "at its last start" in text) == (403, True)
            status, text = await self.why(gateway, gateway.token, origin="http://evil.example")
            assert (status, "foreign Origin" in text) == (403, True)
            status, text = await self.why(gateway, gateway.token, "?agent=nobody")
            assert (status, "there are agent" in text) == (404, True)
            assert (await answer(gateway, "POST /acp", "Content-Length: 0\r\n"))[0] == 403
            async with gateway.socket() as socket:
                await socket.request("echo", {})
                status, text = await self.why(gateway, gateway.token)
                assert (status, "--max-sockets" in text) == (503, True)
        log = "\n".join(gateway.log)
        assert gateway.token not in log
        assert log.count("started (pid") == 1


class TestMessages:
    """L01, L02, L05, L06, P15: what goes through as it is, and what is answered with an error."""

    @pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 132 * KIB, 3 * 1024 * KIB])
    async def test_sizes_in_both_directions(self, gateway: RunningGateway, size: int) -> None:
        async with gateway.socket() as socket:
            await socket.connection.send(
                json.dumps({"jsonrpc": "2.0", "id": 1, "method": "big", "params": {"bytes": size}})
            )
            raw = await socket.connection.recv()
            assert len(raw) == size
            text = "y" * size
            assert (await socket.request("echo", {"text": text}))["result"] == {"text": text}

    async def test_text_is_not_reformatted(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            await socket.connection.send(
                '{"jsonrpc":"2.0",\n "id": 9007199254740993,\r\n "method":"echo","params":{"é":"\\ud800"}}\n'
            )
            answer = await socket.receive()
            assert answer["id"] == 9007199254740993
            assert answer["result"] == {"é": "\ud800"}

    async def test_bad_frames_are_answered_and_the_socket_lives(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            for frame, code in [
                ('{"jsonrpc":"2.0","id":1,"met', -32700),
                ('hod":"echo"}', -32700),
                ('{"jsonrpc":"2.0","id":1,"method":"echo","params":{"x":NaN}}', -32700),
                ('[{"jsonrpc":"2.0","id":1,"method":"echo"}]', -32600),
                ("[]", -32600),
                ("3", -32600),
                ("", -32700),
                ("[" * 100_000, -32600),
                ('{"a":' * 100_000, -32700),
            ]:
                await socket.connection.send(frame)
                answer = await socket.receive()
                assert (answer["id"], answer["error"]["code"]) == (None, code), frame[:50]
                assert "data" in answer["error"]
            assert (await socket.request("echo", [1]))["result"] == [1]

    async def test_over_the_limit_names_the_limit_and_the_next_passes(self) -> None:
        async with run_gateway("--max-message", "1") as gateway, gateway.socket() as socket:
            limit = 1024 * KIB
            answer = await socket.request("echo", {"text": "z" * limit})
            assert answer["id"] == 1
            assert str(limit) in answer["error"]["message"]
            answer = await socket.request("big", {"bytes": limit + 1})  # from the agent: a result
            assert answer["id"] == 2
            assert str(limit) in answer["error"]["message"]
            answer = await socket.request("big-request", {"bytes": limit})  # from the agent: a request
            assert answer["result"]["id"] == "r1"
            assert str(limit) in answer["result"]["error"]["message"]
            assert (await socket.request("big", {"bytes": limit}))["id"] == 4

    async def test_binary_frames_are_refused(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            await socket.connection.send(b"{}")
            with pytest.raises(ConnectionClosed) as info:
                await socket.receive()
            assert info.value.rcvd is not None
            assert info.value.rcvd.code == 1003

    @pytest.mark.parametrize("size", [10, 16 * KIB, 132 * KIB, 3 * 1024 * KIB])
    async def test_messages_as_utf8_in_binary_frames_where_agreed(self, gateway: RunningGateway, size: int) -> None:
        protocols = ["acp.v1", f"sandport.token.{gateway.token}", "sandport.acp.utf8"]
        async with gateway.socket(subprotocols=protocols) as socket:
            assert socket.connection.subprotocol == "sandport.acp.utf8"
            text = "é" * size
            message = json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": text}}, ensure_ascii=False
            )
            for frame in (message.encode(), message):
                await socket.connection.send(frame)
                raw = await socket.connection.recv()
                assert isinstance(raw, bytes) == (size >= 16 * KIB)
                assert json.loads(raw)["result"] == {"text": text}
            for bad in (b"[]", b"{", b"\n"):
                await socket.connection.send(bad)
                assert "error" in await socket.receive()
            await socket.connection.send(b'{"a":"\xff"}')
            with pytest.raises(ConnectionClosed) as info:
                await socket.receive()
            assert info.value.rcvd is not None
            assert info.value.rcvd.code == 1007

    async def test_noise_on_stdout_does_not_reach_the_page(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            assert (await socket.request("noise"))["result"] == {}
            await gateway.wait_log("that are no message")

    async def test_stderr_is_limited(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            await socket.request("stderr", {"lines": 5000, "text": "spam"})
        await gateway.wait_log("ended (the page closed")
        assert sum("spam" in line for line in gateway.log) < 1000

    async def test_a_deaf_agent_stops_the_reading(self, gateway: RunningGateway) -> None:
        """Back-pressure: what the agent does not read stays with the page, not in the gateway's memory."""
        async with gateway.socket() as socket:
            pid = (await socket.request("pid"))["result"]["pid"]
            await socket.connection.send('{"jsonrpc":"2.0","method":"deaf"}')
            frame = json.dumps({"jsonrpc": "2.0", "method": "echo", "params": "p" * 1024 * KIB})
            sent = 0
            with anyio.move_on_after(3):
                for _ in range(200):
                    await socket.connection.send(frame)
                    sent += 1
            assert sent < 100
            status = proc(gateway.process.pid, "status").decode()
            resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            assert resident < 250 * KIB  # kB; 200 MB of frames would not fit
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(ConnectionClosed) as info:
                await socket.receive()
            assert info.value.rcvd is not None
            assert info.value.rcvd.code == 1011

    async def test_a_page_that_closes_while_its_agent_is_deaf_is_seen_at_once(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            pid = (await socket.request("pid"))["result"]["pid"]
            await socket.connection.send('{"jsonrpc":"2.0","method":"deaf"}')
            frame = json.dumps({"jsonrpc": "2.0", "method": "echo", "params": "p" * 100 * KIB})
            for _ in range(20):  # far more than a pipe takes
                await socket.connection.send(frame)
            start = anyio.current_time()
        await gateway.wait_log("ended (the page closed")
        # After the agent's 3 s to see the end of its input, and some; the ping would have needed up to 80.
        assert anyio.current_time() - start < 10
        await gone(pid)


class TestSecretsAndLogs:
    TOKEN = "fixed-token-0123456789abcdef"
    KEY = "sk-environment-0123456789"
    VALUE = "value of the config file"
    BEARER = "bearer-0123456789abcdef"

    @pytest.mark.parametrize("form", ["text", "json"])
    async def test_no_secret_reaches_a_log_or_a_close_reason(self, tmp_path: Path, form: str) -> None:
        (tmp_path / "token").write_text(self.TOKEN + "\n", encoding="utf-8")
        config = tmp_path / "sandport.toml"
        config.write_text(
            f"[agents.echo]\ncommand = {json.dumps(ECHO)}\nenv = {{ SETTING = {json.dumps(self.VALUE)} }}\n",
            encoding="utf-8",
        )
        arguments = [
            "--config",
            str(config),
            "--token-file",
            str(tmp_path / "token"),
            "--log-format",
            form,
            "--verbose",
        ]
        said = f"{self.TOKEN} {self.KEY} {self.VALUE} Authorization: Bearer {self.BEARER}"
        async with run_gateway(*arguments, agent=None, env={"MY_API_KEY": self.KEY}) as gateway:
            await refused(gateway, subprotocols=["acp.v1", f"sandport.token.{self.BEARER}"])
            async with gateway.socket() as socket:
                environment = (await socket.request("environment"))["result"]
                assert (environment["MY_API_KEY"], environment["SETTING"]) == (self.KEY, self.VALUE)
                await socket.request("stderr", {"lines": 1, "text": f"agent says {said} \x1b[2J"})
                await socket.connection.send(f"not JSON: {said}")  # a frame that is refused and logged
                assert (await socket.receive())["error"]["code"] == -32700
                with pytest.raises(ConnectionClosed) as info:
                    await socket.request("exit", {"status": 3, "words": said})
            await gateway.wait_log("ended (")
        assert info.value.rcvd is not None
        text = "\n".join([*gateway.log, info.value.rcvd.reason])
        assert "agent says ***" in text
        for secret in (self.TOKEN, self.KEY, self.VALUE, self.BEARER, "\x1b"):
            assert secret not in text
        if form == "json":
            entries = [json.loads(line) for line in gateway.log]
            ended = next(entry for entry in entries if "ended (" in entry["message"])
            assert ended["level"] == "warning"
            assert (ended["socket"], ended["agent"], ended["code"]) == (1, "echo", 1011)
            assert ended["seconds"] > 0
            assert {entry["pid"] for entry in entries if "pid" in entry} == {ended["pid"]}

    async def test_what_is_missing_is_said_at_the_start(self, tmp_path: Path) -> None:
        async with run_gateway("--dist", str(tmp_path), agent="no-such-agent --acp") as gateway:
            await gateway.wait_log("./build.sh build")
            await gateway.wait_log("no-such-agent is not on PATH")
            assert not any("root folder" in line for line in gateway.log)
        at_root = ["sh", "-c", 'cd / && exec "$@"', "sh"]
        async with run_gateway("--dist", str(tmp_path), prefix=at_root) as gateway:
            await gateway.wait_log("agents work on the root folder")


class TestPing:
    """What a page asks to tell a silent socket from a dead one. The gateway answers, and the agent hears nothing."""

    @pytest.mark.parametrize("ident", ["1", '"sandport-ping-1"', "9007199254740993", "null"])
    async def test_it_is_answered_for_a_deaf_agent_too(self, gateway: RunningGateway, ident: str) -> None:
        async with gateway.socket() as socket:
            await socket.connection.send('{"jsonrpc":"2.0","method":"deaf"}')
            await socket.connection.send(f'{{"jsonrpc":"2.0","id":{ident},"method":"_sandport/ping"}}')
            assert await socket.connection.recv() == f'{{"jsonrpc":"2.0","id":{ident},"result":{{}}}}'

    async def test_what_only_looks_like_one_reaches_the_agent(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            for params in ({"method": "_sandport/ping"}, ["_sandport/ping"], {"a": '"method":"_sandport/ping"'}):
                assert (await socket.request("echo", params))["result"] == params


class TestTls:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Certificate:
        return certificate(tmp_path / "tls", "127.0.0.1", "localhost")

    @asynccontextmanager
    async def gateway(self, files: Certificate, *arguments: str) -> AsyncIterator[RunningGateway]:
        options = ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]
        async with run_gateway(*options, *arguments) as gateway:
            yield gateway

    async def test_page_and_socket(self, files: Certificate) -> None:
        async with self.gateway(files) as gateway:
            assert gateway.origin == f"https://127.0.0.1:{gateway.port}"
            assert (await http(gateway, "/health", files.context))["status"] == "ok"
            async with gateway.socket(ssl=files.context) as socket:
                text = "z" * 3 * 1024 * KIB
                assert (await socket.request("echo", {"text": text}))["result"] == {"text": text}
            assert (await refused(gateway, ssl=files.context, origin=f"http://127.0.0.1:{gateway.port}"))[0] == 403

    async def test_a_host_of_the_network_needs_no_flag(self, files: Certificate) -> None:
        options = ["--host", "0.0.0.0", "--port", str(free_port()), "--public-url", "https://sandport.example"]
        async with self.gateway(files, *options) as gateway:
            assert gateway.origin == "https://sandport.example"
            # Every machine has this address too, and the loopback name stays valid for health checks.
            gateway.origin = f"https://127.0.0.1:{gateway.port}"
            async with gateway.socket(ssl=files.context) as socket:
                assert (await socket.request("echo", {}))["result"] == {}

    async def test_hangup_reads_the_certificate_anew(self, files: Certificate, tmp_path: Path) -> None:
        old, new = certificate(tmp_path / "a", "localhost"), certificate(tmp_path / "b", "localhost")
        trusts_old, trusts_new = old.context, new.context
        async with self.gateway(old) as gateway:
            gateway.origin = gateway.origin.replace("127.0.0.1", "localhost")
            async with gateway.socket(ssl=trusts_old) as socket:
                old.cert.write_bytes(b"broken")
                gateway.process.send_signal(signal.SIGHUP)
                await gateway.wait_log("was not renewed")
                async with gateway.socket(ssl=trusts_old):
                    pass  # the old one stays in force
                old.cert.write_bytes(new.cert.read_bytes())
                old.key.write_bytes(new.key.read_bytes())
                gateway.process.send_signal(signal.SIGHUP)
                await gateway.wait_log("read anew")
                async with gateway.socket(ssl=trusts_new):
                    pass
                assert (await socket.request("echo", {}))["result"] == {}  # and who was there stays

    @pytest.mark.parametrize(
        ("break_it", "hint"),
        [
            (lambda files, other: files.cert.unlink(), "No such file"),
            (lambda files, other: files.key.write_bytes(other.key.read_bytes()), "does not belong to"),
            (lambda files, other: files.key.write_bytes(b"no key"), "not a certificate and its key in PEM form"),
            (lambda files, other: files.encrypt(), "has a passphrase"),
        ],
    )
    def test_files_that_cannot_be_served(self, files: Certificate, tmp_path: Path, break_it: Any, hint: str) -> None:
        broken = certificate(tmp_path, "localhost")
        break_it(broken, files)
        with pytest.raises(tls.CertificateError, match=hint):
            tls.Certificate(broken.cert, broken.key).check()

    def test_a_cert_file_alone_must_hold_the_key(self, files: Certificate, tmp_path: Path) -> None:
        with pytest.raises(tls.CertificateError, match="--tls-key"):
            tls.Certificate(files.cert).check()
        both = tmp_path / "both.pem"
        both.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
        tls.Certificate(both).check()
        assert tls.Certificate(both).end() == pytest.approx(files.end, abs=1)


class TestLifetime:
    async def test_agent_ends_with_its_socket(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            answer = (await socket.request("pid"))["result"]
            assert answer["pid"] == answer["pgid"]  # its own process group
            async with gateway.socket() as second:
                assert (await second.request("pid"))["result"]["pid"] != answer["pid"]
        await gone(answer["pid"])

    async def test_crash_closes_with_1011_and_a_reason(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            with pytest.raises(ConnectionClosed) as info:
                await socket.request("exit", {"status": 3, "words": "é" * 200})
            closed = info.value.rcvd
            assert closed is not None
            assert closed.code == 1011
            assert "exit status 3" in closed.reason
            assert len(closed.reason.encode()) <= 120
        async with gateway.socket() as socket:  # the next socket gets a fresh agent
            assert (await socket.request("echo", {}))["result"] == {}

    async def test_killed_agent_is_named(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            os.kill((await socket.request("pid"))["result"]["pid"], signal.SIGKILL)
            with pytest.raises(ConnectionClosed) as info:
                await socket.receive()
            assert info.value.rcvd is not None
            assert "SIGKILL" in info.value.rcvd.reason

    async def test_missing_command(self) -> None:
        async with run_gateway(agent="/no/such/agent --acp") as gateway, gateway.socket() as socket:
            with pytest.raises(ConnectionClosed) as info:
                await socket.receive()
            assert info.value.rcvd is not None
            assert info.value.rcvd.code == 1011
            assert "/no/such/agent" in info.value.rcvd.reason

    async def test_stubborn_group_is_killed(self, gateway: RunningGateway) -> None:
        async with gateway.socket() as socket:
            pid = (await socket.request("pid"))["result"]["pid"]
            child = (await socket.request("stubborn"))["result"]["child"]
            assert alive(child)
        await gone(pid)
        await gone(child)

    @pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
    @pytest.mark.parametrize("how", ["socket", "gateway"])
    @pytest.mark.parametrize("start", ["escape", "start"])
    async def test_what_left_the_group_is_found(self, start: str, how: str) -> None:
        """By its mark where its parent is gone, by its parents where it has no mark."""
        async with run_gateway() as gateway, gateway.socket() as socket, gateway.socket() as other:
            child = (await socket.request(start))["result"]["child"]
            bystander = (await other.request(start))["result"]["child"]
            if how == "socket":
                await socket.connection.close()
                await gone(child)
                assert alive(bystander)
            else:
                gateway.process.send_signal(signal.SIGTERM)
                await gateway.process.wait()
                assert not alive(child)
                assert not alive(bystander)
        await gone(bystander)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    async def test_shutdown_closes_with_1001_and_ends_every_agent(self, number: signal.Signals) -> None:
        async with run_gateway() as gateway, gateway.socket() as one, gateway.socket() as two:
            pids = [(await socket.request("pid"))["result"]["pid"] for socket in (one, two)]
            gateway.process.send_signal(number)
            for socket in (one, two):
                with pytest.raises(ConnectionClosed) as info:
                    await socket.receive()
                assert info.value.rcvd is not None
                assert info.value.rcvd.code == 1001
            with anyio.fail_after(15):
                assert await gateway.process.wait() == 0
            assert not any(alive(pid) for pid in pids)

    async def test_health_and_choice_of_agents(self, tmp_path: Path) -> None:
        config = tmp_path / "sandport.toml"
        config.write_text(
            f"[agents.first]\ncommand = {json.dumps(ECHO)}\n[agents.second]\ncommand = {json.dumps(ECHO.split())}\n"
            'env = { WHO = "second" }\n',
            encoding="utf-8",
        )
        async with run_gateway("--config", str(config), agent=None) as gateway:
            assert (await http(gateway, "/agents"))["agents"] == ["first", "second"]
            async with gateway.socket(query="?agent=second") as socket:
                pid = (await socket.request("pid"))["result"]["pid"]
                assert b"WHO=second" in proc(pid, "environ")
                assert (await http(gateway, "/health"))["sockets"] == 1
            status, text = await refused(gateway, query="?agent=third")
            assert status == 404
            assert "first, second" in text

    async def test_ready_and_live(self, tmp_path: Path) -> None:
        async with run_gateway("--max-sockets", "1", "--dist", str(bundle(tmp_path))) as gateway:
            assert await http(gateway, "/health/ready") == {"status": "ok"}
            async with gateway.socket() as socket:
                await socket.request("echo", {})
                assert await http(gateway, "/health/ready", status=503) == {"status": "full"}
                assert await http(gateway, "/health/live") == {"status": "ok"}
        async with run_gateway("--dist", str(tmp_path / "empty")) as gateway:
            assert await http(gateway, "/health/ready", status=503) == {"status": "no bundle"}
            assert (await http(gateway, "/health"))["bundle"] is False


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
class TestLoad:
    """What `tests/native/load.py` prints, with limits far above what was measured there."""

    async def test_a_hundred_sockets_at_once_each_with_an_agent(self) -> None:
        count = int(os.environ.get("SANDPORT_SOCKETS", "100"))
        async with run_gateway("--max-sockets", str(count + load.AT_ONCE), agent=load.AGENT) as gateway:
            await load.rounds(gateway, load.AT_ONCE)
            before = await load.emptied(gateway)
            async with load.idle(gateway, count):
                full = await load.held(gateway)
            after = await load.emptied(gateway)
        assert (full.sockets, full.children) == (count, count)
        assert (full.kib - before.kib) / count < 250  # KiB each; 90 measured
        assert (full.descriptors - before.descriptors) / count <= DESCRIPTORS
        assert (after.descriptors, after.children, after.tasks) == (before.descriptors, 0, before.tasks)

    async def test_a_thousand_rounds_leave_nothing_behind(self) -> None:
        count = int(os.environ.get("SANDPORT_ROUNDS", "1000"))
        async with run_gateway(agent=load.AGENT) as gateway:
            before = await load.rounds(gateway, 100)
            after = await load.rounds(gateway, count)
        assert (after.descriptors, after.children, after.tasks) == (before.descriptors, 0, before.tasks)
        # The allocator settles within the first rounds; after 3,000 the memory stays where it is.
        assert after.kib - before.kib < 8 * KIB

    async def test_the_limit_of_descriptors_is_raised_or_named(self) -> None:
        limited = ["bash", "-c", 'ulimit -Sn 64 && ulimit -Hn "$0" && exec "$@"']
        arguments = ["--max-sockets", "60"]
        async with (
            run_gateway(*arguments, agent=load.AGENT, prefix=[*limited, "4096"]) as gateway,
            load.idle(gateway, 60),
        ):
            assert (await load.held(gateway)).children == 60
        command = [*limited, "64", sys.executable, "-m", "sandport_native", "serve", *arguments, "--agent", "cat"]
        done = await anyio.run_process(command, check=False)
        assert done.returncode == 1
        assert b"ulimit -n" in done.stderr


def bundle(folder: Path) -> Path:
    (folder / "index.html").write_text("<title>page</title>", encoding="utf-8")
    return folder


async def answer(
    gateway: RunningGateway, request: str, headers: str = "", context: ssl.SSLContext | None = None
) -> tuple[int, str]:
    """Status and body of one plain request."""
    stream = await anyio.connect_tcp(
        "127.0.0.1", gateway.port, tls=context is not None, ssl_context=context, tls_standard_compatible=False
    )
    async with stream:
        host = f"Host: 127.0.0.1:{gateway.port}\r\nConnection: close\r\n"
        await stream.send(f"{request} HTTP/1.1\r\n{host}{headers}\r\n".encode())
        data = b"".join([chunk async for chunk in stream])
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def http(
    gateway: RunningGateway, path: str, context: ssl.SSLContext | None = None, *, status: int = 200
) -> dict[str, object]:
    got, body = await answer(gateway, f"GET {path}", context=context)
    assert got == status, body
    value: dict[str, object] = json.loads(body)
    return value
