"""Several gateways behind a real nginx that speaks TLS, with the configuration of `deploy/nginx.conf`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from websockets.exceptions import ConnectionClosed, InvalidStatus

from .acp_client import agentpool_env
from .certificates import certificate
from .conftest import AcpSocket, RunningGateway, free_port, run_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
NAME = "sandport.example"
TOKEN = "a-token-for-both-gateways-0123456789"
KIB = 1024

Edit = Callable[[str], str]


def unchanged(text: str) -> str:
    return text


def without(*lines: str) -> Edit:
    """The configuration without the lines that contain one of these."""

    def edit(text: str) -> str:
        kept = [line for line in text.splitlines() if not any(word in line for word in lines)]
        assert len(kept) == len(text.splitlines()) - len(lines)
        return "\n".join(kept)

    return edit


@dataclass
class Site:
    """nginx and what stands behind it."""

    gateways: list[RunningGateway]
    port: int
    context: ssl.SSLContext

    @property
    def origin(self) -> str:
        return f"https://{NAME}:{self.port}"

    @asynccontextmanager
    async def socket(self, **options: Any) -> AsyncIterator[AcpSocket]:
        """A socket as the page opens it: by name, over TLS, through nginx."""
        gateway = next(gateway for gateway in self.gateways if gateway.process.returncode is None)
        settings: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "ssl": self.context}
        settings |= {"address": self.origin, "origin": self.origin, **options}
        async with gateway.socket(**settings) as socket:
            yield socket

    async def refused(self, **options: Any) -> tuple[int, str]:
        with pytest.raises(InvalidStatus) as info:
            async with self.socket(**options):
                pass
        response = info.value.response
        return response.status_code, bytes(response.body or b"").decode()

    async def get(self, path: str) -> tuple[str, bytes]:
        """GET over https; returns head and body."""
        stream = await anyio.connect_tcp(
            "127.0.0.1", self.port, tls_hostname=NAME, ssl_context=self.context, tls_standard_compatible=False
        )
        async with stream:
            await stream.send(f"GET {path} HTTP/1.1\r\nHost: {NAME}:{self.port}\r\nConnection: close\r\n\r\n".encode())
            data = b"".join([chunk async for chunk in stream])
        head, _, body = data.partition(b"\r\n\r\n")
        return head.decode(), body


def nginx() -> str:
    """Where it is; Debian puts it where only root looks."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.fail("nginx is missing. Get it with: apt-get install nginx-light (`./build.sh test` does)")
    return found


def configuration(folder: Path, port: int, gateways: Sequence[int], edit: Edit) -> Path:
    """`deploy/nginx.conf` with the ports and files of this test, below the frame that Debian has around it."""
    text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    servers = "".join(f"  server 127.0.0.1:{number};\n" for number in gateways)
    for pattern, replacement in (
        (r"(  server 127\.0\.0\.1:\d+;\n)+", servers),
        (r"listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        (r"/etc/sandport/tls/fullchain\.pem", str(folder / "fullchain.pem")),
        (r"/etc/sandport/tls/privkey\.pem", str(folder / "privkey.pem")),
    ):
        text, count = re.subn(pattern, replacement, text)
        assert count == 1, pattern
    (folder / "sandport.conf").write_text(edit(text), encoding="utf-8")
    temporary = "".join(
        f"  {name}_temp_path {folder / name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    frame = folder / "nginx.conf"
    frame.write_text(
        ("user root;\n" if os.getuid() == 0 else "")
        + f"daemon off;\nworker_processes 1;\npid {folder / 'nginx.pid'};\nerror_log stderr warn;\n"
        f"events {{ worker_connections 512; }}\nhttp {{\n  access_log off;\n{temporary}"
        f"  include {folder / 'sandport.conf'};\n}}\n",
        encoding="utf-8",
    )
    return frame


@asynccontextmanager
async def proxy(folder: Path, port: int, gateways: Sequence[int], edit: Edit) -> AsyncIterator[None]:
    """A running nginx that accepts connections."""
    frame = configuration(folder, port, gateways, edit)
    command = [nginx(), "-c", str(frame), "-e", "stderr"]
    async with await anyio.open_process(command, stderr=None, stdout=None) as process:
        try:
            with anyio.fail_after(20):
                while True:
                    assert process.returncode is None, "nginx did not start"
                    try:
                        await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                        break
                    except OSError:  # it tells nobody when it is ready
                        await anyio.sleep(0.02)
            yield
        finally:
            process.terminate()


@asynccontextmanager
async def site(
    folder: Path,
    *arguments: str,
    count: int = 2,
    edit: Edit = unchanged,
    public: str = f"https://{NAME}:{{port}}",
    **options: Any,
) -> AsyncIterator[Site]:
    """Gateways with the same token behind one nginx; `edit` changes its configuration, `public` what they believe."""
    port, ports = free_port(), [free_port() for _ in range(count)]
    files = certificate(folder, NAME)
    (folder / "token").write_text(TOKEN + "\n", encoding="utf-8")
    (folder / "dist").mkdir()
    (folder / "dist" / "index.html").write_text("<title>page</title>", encoding="utf-8")
    policy = {"*": {"Content-Security-Policy": "frame-src {origin}/sandbox.html"}}
    (folder / "dist" / "headers.json").write_text(json.dumps(policy), encoding="utf-8")
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(
                run_gateway(
                    *("--port", str(number), "--public-url", public.format(port=port)),
                    *("--token-file", str(folder / "token")),
                    *("--dist", str(options.get("dist") or folder / "dist")),
                    *arguments,
                    **{name: value for name, value in options.items() if name != "dist"},
                )
            )
            for number in ports
        ]
        await stack.enter_async_context(proxy(folder, port, ports, edit))
        yield Site(gateways, port, files.context)


async def owner(socket: AcpSocket) -> int:
    """The process id of the gateway at the other end."""
    pid: int = (await socket.request("pid"))["result"]["gateway"]
    return pid


class TestTwoGateways:
    async def test_sockets_are_spread_and_move_on_when_one_gateway_stops(self, tmp_path: Path) -> None:
        async with site(tmp_path) as site_, AsyncExitStack() as stack:
            sockets = [await stack.enter_async_context(site_.socket()) for _ in range(6)]
            owners = [await owner(socket) for socket in sockets]
            assert sorted(Counter(owners).values()) == [3, 3]
            leaving, staying = site_.gateways
            leaving.process.send_signal(signal.SIGTERM)
            for socket, pid in zip(sockets, owners, strict=True):
                if pid == leaving.process.pid:
                    with pytest.raises(ConnectionClosed) as info:
                        await socket.receive()
                    assert info.value.rcvd is not None
                    assert info.value.rcvd.code == 1001
                    # The page connects again at once; its old gateway may still be ending agents.
                    async with site_.socket() as again:
                        assert await owner(again) == staying.process.pid
                else:
                    assert (await socket.request("echo", [1]))["result"] == [1]
            with anyio.fail_after(15):
                assert await leaving.process.wait() == 0
            async with site_.socket() as again:
                assert await owner(again) == staying.process.pid

    async def test_a_full_gateway_passes_the_page_on(self, tmp_path: Path) -> None:
        async with site(tmp_path, "--max-sockets", "1") as site_, site_.socket() as one, site_.socket() as two:
            assert await owner(one) != await owner(two)
            # nginx has asked both, and has its own words for that; the page tries again either way.
            assert (await site_.refused())[0] in (502, 503)

    async def test_a_crashed_gateway_is_left_out(self, tmp_path: Path) -> None:
        async with site(tmp_path) as site_:
            crashed, staying = site_.gateways
            crashed.process.kill()
            await crashed.process.wait()
            for _ in range(4):
                async with site_.socket() as socket:
                    assert await owner(socket) == staying.process.pid


@pytest.mark.timeout(400)
async def test_a_page_moves_to_another_gateway_and_its_session_goes_on(tmp_path: Path) -> None:
    """All of it real: the page in Chromium over https and wss, nginx, two gateways, agentpool with its history."""
    dist = Path(os.environ.get("SANDPORT_DIST", ROOT / "dist"))
    if not (dist / "index.html").is_file():
        pytest.fail("the bundle is missing: ./build.sh build")
    async with site(tmp_path, dist=dist, agent=None, env=agentpool_env(tmp_path)) as site_:
        script = ROOT / "tests" / "native" / "proxy_page.mjs"
        command = ["node", str(script), f"{site_.origin}/#token={TOKEN}", NAME]
        async with await anyio.open_process(command, cwd=ROOT, stderr=None) as page:
            try:
                assert page.stdin is not None
                assert page.stdout is not None
                output = BufferedByteReceiveStream(page.stdout)

                async def said(word: str) -> None:
                    while (await output.receive_until(b"\n", 100_000)).decode() != word:
                        pass

                await said("asked")
                (leaving,) = [g for g in site_.gateways if any("started (pid" in line for line in g.log)]
                (staying,) = [g for g in site_.gateways if g is not leaving]
                leaving.process.send_signal(signal.SIGTERM)
                await said("resumed")
                # An open socket that nobody answers any more.
                staying.process.send_signal(signal.SIGSTOP)
                await page.stdin.send(b"\n")
                await said("lost")
                staying.process.send_signal(signal.SIGCONT)
                await said("alive")
                assert await page.wait() == 0
            finally:
                for gateway in site_.gateways:
                    with contextlib.suppress(ProcessLookupError):
                        gateway.process.send_signal(signal.SIGCONT)
                if page.returncode is None:
                    page.terminate()


class TestOneGateway:
    async def test_the_door_is_the_same_behind_the_proxy(self, tmp_path: Path) -> None:
        async with site(tmp_path, count=1) as site_:
            assert (await site_.refused(origin="https://evil.example"))[0] == 403
            assert (await site_.refused(origin="null"))[0] == 403
            assert (await site_.refused(origin=f"http://{NAME}:{site_.port}"))[0] == 403
            assert (await site_.refused(subprotocols=["acp.v1"]))[0] == 403
            status, text = await site_.refused(subprotocols=["acp.v1", "sandport.token.wrong-token-of-someone"])
            assert (status, "token" in text) == (403, True)
            assert "started (pid" not in "\n".join(site_.gateways[0].log)

    async def test_the_page_is_told_its_own_address(self, tmp_path: Path) -> None:
        async with site(tmp_path, count=1) as site_:
            head, body = await site_.get("/")
            assert head.startswith("HTTP/1.1 200")
            assert f"frame-src {site_.origin}/sandbox.html" in head
            assert body == b"<title>page</title>"
            head, body = await site_.get("/health")
            assert json.loads(body)["status"] == "ok"

    async def test_large_messages_in_both_directions(self, tmp_path: Path) -> None:
        async with site(tmp_path, count=1) as site_, site_.socket() as socket:
            text = "y" * 20 * 1024 * KIB
            assert (await socket.request("echo", {"text": text}))["result"] == {"text": text}

    async def test_an_idle_socket_lives_by_the_pings(self, tmp_path: Path) -> None:
        """The same silence twice: the proxy's patience is 2 s, and only pings that are shorter keep the socket."""

        def impatient(text: str) -> str:
            changed, count = re.subn(r"proxy_(read|send)_timeout 75s", r"proxy_\1_timeout 2s", text)
            assert count == 2
            return changed

        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        async with (
            site(tmp_path / "a", "--ping", "1", count=1, edit=impatient) as good,
            site(tmp_path / "b", "--ping", "20", count=1, edit=impatient) as bad,
            good.socket() as kept,
            bad.socket() as lost,
        ):
            for socket in (kept, lost):
                await socket.request("echo", {})
            with anyio.fail_after(15), pytest.raises(ConnectionClosed):
                await lost.receive()
            with anyio.move_on_after(2):
                await kept.receive()
            assert (await kept.request("echo", [1]))["result"] == [1]
            await bad.gateways[0].wait_log("ended (the page closed")  # and its agent with it


class TestWrongSettings:
    """Each gives the person who set the proxy up a text that names the setting."""

    @pytest.mark.parametrize("lines", [("Upgrade $http_upgrade",), ("Connection $sandport",)])
    async def test_no_upgrade(self, tmp_path: Path, lines: tuple[str, ...]) -> None:
        async with site(tmp_path, count=1, edit=without(*lines)) as site_:
            status, text = await site_.refused()
            assert status == 426
            assert "proxy_set_header Upgrade $http_upgrade" in text
            await site_.gateways[0].wait_log("proxy_http_version 1.1")

    async def test_host_not_passed_on(self, tmp_path: Path) -> None:
        async with site(tmp_path, count=1, edit=without("Host $http_host")) as site_:
            status, text = await site_.refused()
            assert status == 403
            assert "a proxy must pass the Host on" in text
            assert "Host 'sandport'" in await site_.gateways[0].wait_log("unknown Host")

    async def test_the_gateways_own_host_instead(self, tmp_path: Path) -> None:
        """As nginx does by itself where proxy_pass names the gateway's address."""

        def own(text: str) -> str:
            found = re.search(r"server (127\.0\.0\.1:\d+);", text)
            assert found is not None
            return text.replace("Host $http_host", f"Host {found[1]}")

        async with site(tmp_path, count=1, edit=own) as site_:
            status, text = await site_.refused()
            assert (status, "proxy_set_header Host $http_host" in text) == (403, True)
            await site_.gateways[0].wait_log(f"Origin '{site_.origin}'")

    async def test_the_wrong_scheme(self, tmp_path: Path) -> None:
        async with site(tmp_path, count=1, public=f"http://{NAME}:{{port}}") as site_:
            status, text = await site_.refused()
            assert (status, "--public-url says http where the page has https" in text) == (403, True)
            await site_.gateways[0].wait_log("publish it by https")

    async def test_a_name_that_the_gateway_does_not_know(self, tmp_path: Path) -> None:
        async with site(tmp_path, count=1, public="https://other.example") as site_:
            status, text = await site_.refused()
            assert (status, "--public-url must name it" in text) == (403, True)
