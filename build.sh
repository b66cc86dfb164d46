#!/usr/bin/env bash
# The one entry to Sandport: sets up what a command needs, then calls the real tools. `./build.sh help` lists the commands.
set -euo pipefail
cd "$(dirname "$0")"

PYTHON=.venv/bin/python
AGENTPOOL=.venv-agentpool/bin/sandport
export SANDPORT_AGENTPOOL="$PWD/$AGENTPOOL" LOGFIRE_IGNORE_NO_CONFIG=1 NO_UPDATE_NOTIFIER=1

usage() {
  cat <<'TEXT'
usage: ./build.sh COMMAND [options]

  run [options]     build, then serve the page with the demo agent and open it (options: see `run --help`)
  check [--static]  build, then let the agent call tools in a headless browser and check its answer;
                    --static: on a plain file server, with the agent in the page
  test              every check and test
  build [--with N]  the self-contained bundle in dist/; --with adds wheels of your own (repeatable)
  peers [--quick]   real programs of others against ours, as a table
  conformance       the MCP conformance suite against a hosted server, natively and inside Pyodide
  bench             benchmarks, each against a peer in the same run
  sandport ...      the command line of Sandport, set up
  lock              resolve the locked dependencies anew
  clean             remove what was built and installed here
TEXT
}

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
stop() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }

# changed STAMP FILE...: whether the files differ from when `stamp STAMP FILE...` was called.
digest() { cat "$@" | sha256sum | cut -d' ' -f1; }
changed() { local stamp=.cache/stamps/$1; shift; [ "$(cat "$stamp" 2>/dev/null)" != "$(digest "$@")" ]; }
stamp() { local stamp=.cache/stamps/$1; shift; mkdir -p .cache/stamps; digest "$@" >"$stamp"; }

# -- set-up ---------------------------------------------------------------------------------------------------

find_uv() {
  if [ -x .tools/bin/uv ]; then UV=$PWD/.tools/bin/uv
  elif uv --version >/dev/null 2>&1; then UV=uv
  else
    command -v python3 >/dev/null || stop "Python is missing. Get it with: apt-get install python3 python3-venv"
    say "Installing uv into .tools"
    # A pyenv shim obeys .python-version, which a system Python need not; any Python 3 will do here.
    (cd / && python3 -m venv "$OLDPWD/.tools") || stop "Python cannot make a virtual environment. Get it with: apt-get install python3-venv"
    .tools/bin/python -m pip install --quiet --disable-pip-version-check uv || stop "uv could not be installed; see the message above"
    UV=$PWD/.tools/bin/uv
  fi
}

# venv DIR LOCK: a virtual environment of Python 3.13 with what the lock file says and Sandport itself.
venv() {
  local dir=$1 lock=$2
  [ -x "$dir/bin/python" ] && ! changed "$dir" "$lock" pyproject.toml && return
  find_uv
  say "Installing $lock into $dir"
  [ -x "$dir/bin/python" ] || "$UV" venv --quiet --python 3.13 "$dir" ||
    stop "Python 3.13 is missing. Get it with: ${UV} python install 3.13"
  # Compiled at once: an agent's first start would otherwise take several seconds longer.
  "$UV" pip sync --quiet --python "$dir" --require-hashes --compile-bytecode "$lock"
  "$UV" pip install --quiet --python "$dir" --no-deps --editable .
  stamp "$dir" "$lock" pyproject.toml
}

setup_python() { venv .venv requirements/dev.txt; }
setup_agentpool() { venv .venv-agentpool requirements/agentpool.txt; }
setup_agentpool_sets() {
  for name in mcp1 2026-05; do venv ".venv-agentpool-$name" "requirements/agentpool-$name.txt"; done
}

setup_node() {
  command -v node >/dev/null && command -v npm >/dev/null || stop "Node.js is missing. Get it with: apt-get install nodejs npm"
  node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' ||
    stop "Node.js $(node --version) is too old: 20.19 or newer is needed. Get it with: npm install --global node@22"
  [ -d node_modules ] && ! changed npm package-lock.json && return
  say "Installing npm packages"
  npm ci --no-audit --no-fund --loglevel=error >&2
  stamp npm package-lock.json
}

setup_hosts() {
  [ -d tests/hosts/node_modules ] && ! changed hosts tests/hosts/package-lock.json && return
  say "Installing Deno and Bun for the tests"
  npm ci --prefix tests/hosts --no-audit --no-fund --loglevel=error >&2
  stamp hosts tests/hosts/package-lock.json
}

# apt PACKAGE...: install Debian packages where that is possible, else say how.
apt() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "Installing $*"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >/dev/null && return
  fi
  stop "Missing: $*. Get it with: sudo apt-get install $*"
}

find_chromium() {
  local name
  for name in chromium chromium-browser google-chrome google-chrome-stable; do command -v "$name" && return; done
  node -e 'const p = require("@playwright/test").chromium.executablePath(); require("fs").existsSync(p) ? console.log(p) : process.exit(1)' 2>/dev/null
}

setup_chromium() {
  CHROMIUM=${CHROMIUM:-$(find_chromium || true)}
  [ -n "$CHROMIUM" ] || { apt chromium; CHROMIUM=$(find_chromium) || stop "Chromium was installed and is not found: set CHROMIUM to its path"; }
  export CHROMIUM
}

setup_engines() {
  local missing=()
  command -v firefox-esr >/dev/null || command -v firefox >/dev/null || missing+=(firefox-esr)
  command -v WebKitWebDriver >/dev/null || missing+=(webkit2gtk-driver)
  command -v Xvfb >/dev/null || missing+=(xvfb xauth)
  [ ${#missing[@]} = 0 ] || apt "${missing[@]}"
}

# What the examples of deploy/ are tried with.
setup_deploy() {
  local missing=()
  [ -x /usr/sbin/nginx ] || command -v nginx >/dev/null || missing+=(nginx-light)
  command -v systemd-analyze >/dev/null || missing+=(systemd)
  [ ${#missing[@]} = 0 ] || apt "${missing[@]}"
}

# -- commands -------------------------------------------------------------------------------------------------

build() {
  setup_python
  setup_node
  node browser/build/bundle.mjs "$@" >&2
  node web/pack-workspace.mjs
  local inputs
  inputs=$(git ls-files -co --exclude-standard -- web browser/src package-lock.json | sort)
  if [ ! -f dist/index.html ] || changed page $inputs; then
    say "Building the page"
    npx vite build web --logLevel warn >&2
    stamp page $inputs
  fi
  : >.cache/stamps/built  # by its time `sandport serve` sees that sources are newer
}

run() {
  case " $* " in *" --help "*) setup_python; exec .venv/bin/sandport serve --help ;; esac
  build
  setup_agentpool
  exec .venv/bin/sandport serve --dist dist --open "$@"
}

check() {
  local script=tests/check/check.mjs
  case "${1:-}" in
    "") setup_agentpool ;;
    --static) script=tests/check/static.mjs ;;
    *) stop "check takes no option but --static" ;;
  esac
  build
  setup_chromium
  exec node "$script"
}

RESULTS=.cache/test-results
# step NAME COMMAND...: run one part of the test; a failure is remembered and the rest still runs.
step() {
  local name=$1 start=$SECONDS outcome=failed
  shift
  say "$name"
  if "$@"; then outcome=passed; fi
  printf '%s %s\n' "$outcome" "$name" >>"$RESULTS"
  say "$name: $outcome in $((SECONDS - start)) s"
}

# What needs no bundle and no browser; it runs beside the bundle, for two cores are more than that uses.
light_tests() {
  step "lint (Python)" .venv/bin/ruff check .
  step "format (Python)" .venv/bin/ruff format --check .
  step "lint and format (TypeScript)" npx biome check --error-on-warnings .
  step "types (TypeScript)" npx tsc -b
  step "import contract" .venv/bin/lint-imports --no-cache
  step "types (Python)" .venv/bin/mypy
  step "types (agentpool add-on)" env MYPYPATH=core:native .venv/bin/mypy --config-file "" --strict --explicit-package-bases \
    --python-version 3.13 --python-executable .venv-agentpool/bin/python -p sandport_native.agentpool -p sandport_native.demo
  step "core" $PYTHON -m pytest tests/core
  step "browser units" npx vitest run
  step "workspace tools, demo, agent in the page" $PYTHON -m pytest tests/web_tools tests/inpage
  step "peers, the newest of each family" $PYTHON -m tests.peers --quick
}

# What has time limits of its own (browsers, agents, gateways): one after the other, with the machine to itself.
real_tests() {
  step "three engines" node tests/engines/run.mjs
  step "whole path in Chromium" npx playwright test --config tests/e2e/playwright.config.ts
  step "tools of the page, three engines" node tests/web_tools/engines.mjs
  step "agent in the page, three engines" node tests/inpage/run.mjs
  step "static site as a person uses it" node tests/inpage/site.mjs
  step "packages (npm)" node --test tests/package/npm.test.mjs
  step "hosts: Node, Deno, Bun" node --test --test-concurrency=2 tests/hosts/*.test.mjs
  step "examples" node --test tests/examples/examples.test.mjs
  step "wheel, and examples in Python" $PYTHON -m pytest tests/package tests/examples
  step "check" node tests/check/check.mjs
  step "check, static" node tests/check/static.mjs
  native_tests
  step "a stock agent behind the bridge" $PYTHON -m tests.peers --only fast-agent
}

# Two halves side by side: each is one Python and the processes that it drives.
native_tests() {
  local agents=(tests/native/test_agentpool*.py tests/native/test_bridge*.py)
  step "native: agentpool, bridge" $PYTHON -m pytest "${agents[@]}" >.cache/test-native.log 2>&1 &
  BESIDE=$!
  step "native: gateway, command line" $PYTHON -m pytest tests/native "${agents[@]/#/--ignore=}"
  wait "$BESIDE" || true
  cat .cache/test-native.log
}

run_tests() {
  setup_python
  setup_agentpool
  setup_node
  setup_chromium
  setup_engines
  setup_deploy
  setup_hosts
  mkdir -p .cache
  : >"$RESULTS"
  light_tests >.cache/test-light.log 2>&1 &
  BESIDE=$!
  trap 'kill "$BESIDE" 2>/dev/null || true' EXIT
  step "bundle" build
  step "core inside Pyodide" node tests/pyodide/run.mjs
  say "What ran beside that"
  wait "$BESIDE" || true
  cat .cache/test-light.log
  real_tests
  local passed failed
  passed=$(grep -c '^passed' "$RESULTS" || true)
  failed=$(grep -c '^failed' "$RESULTS" || true)
  grep '^failed' "$RESULTS" || true
  printf 'steps: %d passed, %d failed\n' "$passed" "$failed"
  [ "$failed" = 0 ]
}

peers() {
  setup_python
  setup_agentpool
  setup_node
  # The quick ones and those of agents alone need no page.
  case " $* " in *" --quick "* | *" --list "*) ;; *) setup_agentpool_sets; build; setup_chromium ;; esac
  exec $PYTHON -m tests.peers "$@"
}

lock() {
  find_uv
  "$UV" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header pyproject.toml \
    --extra native --extra host --extra acp --group dev -o requirements/dev.txt "$@"
  # agentpool with the newest of all, with MCP SDK 1, and as of its own time: the range that is tested.
  lock_agentpool agentpool "$@"
  lock_agentpool agentpool-mcp1 --constraints <(printf 'fastmcp<4\nmcp<2\n') "$@"
  lock_agentpool agentpool-2026-05 --exclude-newer 2026-05-01 "$@"
}

lock_agentpool() {
  local name=$1
  shift
  "$UV" pip compile --quiet --universal --python-version 3.13 --generate-hashes --no-header pyproject.toml \
    --extra native --extra agentpool -o "requirements/$name.txt" "$@"
}

command=${1:-help}
shift || true
case $command in
  build | check | run | lock) "$command" "$@" ;;
  test) run_tests "$@" ;;
  peers) peers "$@" ;;
  conformance) build; exec $PYTHON -m tests.conformance --pyodide "$@" ;;
  bench) build; setup_agentpool; setup_chromium; exec $PYTHON bench/run.py "$@" ;;
  sandport) setup_python; exec .venv/bin/sandport "$@" ;;
  clean) rm -rf dist .cache .venv .venv-agentpool* .tools node_modules test-results ;;
  help | -h | --help) usage ;;
  *) usage >&2; stop "no such command: $command" ;;
esac
