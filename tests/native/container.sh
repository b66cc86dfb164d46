#!/usr/bin/env bash
# Builds deploy/Containerfile for real where no container registry can be reached, and lets the image answer: the base
# image is made by debootstrap, the build runs in a chroot. As root, with Debian's packages buildah and debootstrap;
# takes about ten minutes. CA, if set, is a file of further certificate authorities for the build's network.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=${WORK:-$(mktemp -d)}
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
store=(--root "$work/store" --runroot "$work/run")
base=debian:trixie-slim

[ -d "$work/rootfs" ] || debootstrap --variant=minbase trixie "$work/rootfs"
from=$(buildah "${store[@]}" from scratch)
buildah "${store[@]}" add --quiet "$from" "$work/rootfs" / >/dev/null
if [ -n "${CA:-}" ]; then
  buildah "${store[@]}" copy --quiet "$from" "$CA" /usr/local/share/ca-certificates/local.crt >/dev/null
  bundle=/etc/ssl/certs/ca-certificates.crt
  buildah "${store[@]}" config --env SSL_CERT_FILE=$bundle --env NODE_EXTRA_CA_CERTS=$bundle --env PIP_CERT=$bundle "$from"
fi
buildah "${store[@]}" commit --quiet --rm "$from" "docker.io/library/$base" >/dev/null
buildah "${store[@]}" build --pull-never --network host --file deploy/Containerfile --tag sandport-test .

# Its own command, on loopback of this machine.
image=$(buildah "${store[@]}" from --pull-never sandport-test)
log=$work/serve.log
buildah "${store[@]}" run --network host "$image" -- \
  timeout 60 sandport serve --host 0.0.0.0 --allow-remote --port 8765 --log-format json --public-url http://127.0.0.1:8765 >"$log" 2>&1 &
for _ in $(seq 60); do grep -q "is ready" "$log" && break; sleep 1; done
python3 - <<'PYTHON'
import json, urllib.request
for path in ("/health", "/agents"):
    with urllib.request.urlopen("http://127.0.0.1:8765" + path) as answer:
        print(path, json.load(answer))
with urllib.request.urlopen("http://127.0.0.1:8765/") as answer:
    assert b"<title>" in answer.read()
PYTHON
buildah "${store[@]}" run --network host "$image" -- sandport doctor
echo "container: passed"
