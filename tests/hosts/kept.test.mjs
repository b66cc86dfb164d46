/**
 * The memory image that a host makes of a bundle without one: made aside, used by the next start, and never used when it is not
 * exactly what was made. Deno and Bun are those of `npm ci --prefix tests/hosts`; without them their tests are skipped.
 *
 *     node --test tests/hosts/kept.test.mjs
 */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { compile, imageMade, PACKAGE, ROOT, removeCompiled, withoutImages } from "./compiled.mjs";

const run = promisify(execFile);
const HERE = fileURLToPath(new URL(".", import.meta.url));
const CLI = path.join(PACKAGE, "bin/sandport.mjs");
const installed = (name) => path.join(HERE, "node_modules/.bin", name);
const HOSTS = {
  node: [process.execPath],
  deno: [installed("deno"), "run", "-A", "--unstable-worker-options"],
  bun: [installed("bun")],
};
const MADE = /^The next start will be quicker: a memory image is being made aside, in /;
const DAY = 86_400_000;
const windows = process.platform === "win32" && "Windows keeps rights in another way";

let folder;
let bundle;
let KeptImage;
let Claim;
let imageFolder;
let count = 0;

before(async () => {
  compile();
  ({ KeptImage, Claim, imageFolder } = await import(pathToFileURL(`${PACKAGE}/dist/node/kept.js`).href));
  folder = mkdtempSync(path.join(tmpdir(), "sandport-kept-"));
  bundle = bundleWithout("bundle");
});

after(() => {
  removeCompiled();
  rmSync(folder, { recursive: true, force: true });
});

const bundleWithout = (name, changed) => withoutImages(path.join(folder, name), changed);

/** A folder of the test's own that is not there yet. */
function fresh() {
  count += 1;
  return path.join(folder, `cache-${count}`);
}

async function start(host, options) {
  const [command, ...args] = HOSTS[host];
  const all = [...args, path.join(HERE, "start.mjs"), PACKAGE, JSON.stringify({ bundle, ...options })];
  const { stdout, stderr } = await run(command, all, { cwd: folder, timeout: 120_000 });
  assert.equal(stderr, "");
  return JSON.parse(stdout.trim().split("\n").at(-1));
}

const namesIn = (cache) => (existsSync(cache) ? readdirSync(cache) : []);

/** Stands for an image: what is kept is not looked into before Python starts from it. */
async function keep(cache, bytes = new Uint8Array([1, 2, 3, 4]), part = "runtime") {
  const kept = new KeptImage(bundle, part, cache);
  const claim = await kept.claim(true);
  await claim.keep(bytes);
  await claim.end();
  return { kept, file: await kept.file() };
}

for (const host of Object.keys(HOSTS)) {
  describe(host, {
    timeout: 180_000,
    skip: !existsSync(HOSTS[host][0]) && `${host} is not installed: npm ci --prefix tests/hosts`,
  }, () => {
    it("makes an image aside, once, and starts from it the next time", async () => {
      const imageCache = fresh();
      // At once, where that says something of more than the host.
      const starts = Array.from({ length: host === "node" ? 2 : 1 }, () => start(host, { imageCache }));
      const first = await Promise.all(starts);
      assert.ok(
        first.every(({ mode }) => mode === "cold"),
        "it did not start cold",
      );
      const said = first.flatMap((one) => one.said);
      assert.equal(said.length, 1, `${said}`);
      assert.match(said[0], MADE);
      await imageMade(imageCache);
      const [name, ...others] = namesIn(imageCache);
      assert.match(name, /^runtime-[0-9a-f]{32}\.image$/);
      assert.deepEqual(others, []);
      if (!windows) {
        assert.equal(statSync(imageCache).mode & 0o777, 0o700);
        assert.equal(statSync(path.join(imageCache, name)).mode & 0o777, 0o600);
      }
      const next = await start(host, { imageCache });
      assert.deepEqual(next, { mode: "snapshot", tools: first[0].tools, said: [] });
    });
  });
}

describe("an image that was kept", () => {
  it("is not used, nor made again for a day, when Python does not start from it", async () => {
    const imageCache = fresh();
    await keep(imageCache);
    const report = await start("node", { imageCache });
    assert.equal(report.mode, "cold");
    assert.equal(report.said.length, 1);
    assert.match(
      report.said[0],
      /^the memory image cannot be used here \(.*damaged.*\); starting without it$/,
    );
    assert.match(namesIn(imageCache).join(), /^runtime-\w+\.image\.refused$/);
    const kept = new KeptImage(bundle, "runtime", imageCache);
    assert.equal(await kept.claim(), undefined);
    const past = new Date(Date.now() - DAY - 1000);
    utimesSync(path.join(imageCache, namesIn(imageCache)[0]), past, past);
    const claim = await kept.claim();
    assert.ok(claim);
    await claim.end();
  });

  for (const [kind, spoil] of [
    ["shortened", (file) => truncateSync(file, statSync(file).size - 1)],
    ["emptied", (file) => truncateSync(file)],
    ["cut to its digest", (file) => truncateSync(file, 32)],
    ["lengthened", (file) => writeFileSync(file, "more", { flag: "a" })],
    [
      "changed in one bit",
      (file) => {
        const bytes = readFileSync(file);
        bytes[bytes.length - 1] ^= 1;
        writeFileSync(file, bytes);
      },
    ],
    [
      "changed in its digest",
      (file) => writeFileSync(file, Buffer.concat([Buffer.alloc(32), readFileSync(file).subarray(32)])),
    ],
  ]) {
    it(`is removed, and can be made again, when it was ${kind}`, async () => {
      const { kept, file } = await keep(fresh());
      spoil(file);
      const { image, problem } = await kept.read();
      assert.equal(image, undefined);
      assert.match(problem, / is damaged$/);
      assert.ok(!existsSync(file));
      const claim = await kept.claim();
      assert.ok(claim);
      await claim.end();
    });
  }

  it("is said to be damaged by a start, which goes on without it", async () => {
    const imageCache = fresh();
    const { kept, file } = await keep(imageCache);
    rmSync(file);
    // Nobody makes another while this test does.
    const claim = await kept.claim();
    writeFileSync(file, "", { mode: 0o600 });
    const { mode, said } = await start("node", { imageCache });
    await claim.end();
    assert.equal(mode, "cold");
    assert.equal(said.length, 1, `${said}`);
    assert.match(said[0], /^the memory image cannot be used here \(.* is damaged\); starting without it$/);
  });

  it("is not that of another bundle, or of the agent", async () => {
    const { kept } = await keep(fresh());
    const others = [
      new KeptImage(bundleWithout("newer", { version: "0.0.0" }), "runtime", kept.folder),
      new KeptImage(bundleWithout("other", { preload: [] }), "runtime", kept.folder),
      new KeptImage(bundle, "agent", kept.folder),
    ];
    const files = await Promise.all([kept, ...others].map((one) => one.file()));
    assert.equal(new Set(files).size, files.length);
    for (const other of others) assert.deepEqual(await other.read(), {});
  });

  it("is not used when others can read or change it", { skip: windows }, async () => {
    const others = /^others than you can change or read/;
    for (const mode of [0o640, 0o604, 0o620, 0o602]) {
      const { kept, file } = await keep(fresh());
      chmodSync(file, mode);
      assert.match((await kept.read()).problem, others);
    }
    for (const mode of [0o770, 0o707]) {
      const cache = fresh();
      const { kept } = await keep(cache);
      chmodSync(cache, mode);
      assert.match((await kept.read()).problem, others);
      await assert.rejects(kept.claim(), /others than you can write to/);
    }
  });

  it("is not used when it is a link, or another kind of file", { skip: windows }, async () => {
    const cache = fresh();
    const { kept, file } = await keep(cache);
    const moved = path.join(cache, "moved");
    copyFileSync(file, moved);
    rmSync(file);
    symlinkSync(moved, file);
    assert.match((await kept.read()).problem, /no file of yours/);
    rmSync(file);
    mkdirSync(file);
    assert.match((await kept.read()).problem, /no file of yours/);
  });

  it("is replaced whole, and looked at by its digest", async () => {
    const { kept, file } = await keep(fresh(), new Uint8Array([7, 8, 9]));
    const bytes = readFileSync(file);
    assert.deepEqual(bytes.subarray(0, 32), createHash("sha256").update(bytes.subarray(32)).digest());
    assert.deepEqual(new Uint8Array((await kept.read()).image), new Uint8Array([7, 8, 9]));
  });

  it("goes when it is old, or one of too many; other files stay", async () => {
    const cache = fresh();
    mkdirSync(cache, { mode: 0o700 });
    const name = (index) => `runtime-${String(index).repeat(32)}.image`;
    const put = (file, days) => {
      writeFileSync(path.join(cache, file), "", { mode: 0o600 });
      const then = new Date(Date.now() - days * DAY);
      utimesSync(path.join(cache, file), then, then);
    };
    for (const index of [1, 2, 3, 4, 5]) put(name(index), index);
    put(name(6), 31);
    put(`${name(7)}.123.1`, 2);
    put(`${name(8)}.123.1`, 0.5);
    put("mine.txt", 400);
    const { file } = await keep(cache);
    assert.deepEqual(
      namesIn(cache).sort(),
      [path.basename(file), name(1), name(2), name(3), `${name(8)}.123.1`, "mine.txt"].sort(),
    );
  });
});

describe("the making", () => {
  it("is one process's at a time; what a dead one left is taken over", async () => {
    const cache = fresh();
    const one = new KeptImage(bundle, "runtime", cache);
    const other = new KeptImage(bundle, "runtime", cache);
    const claim = await one.claim();
    assert.ok(claim);
    assert.equal(await other.claim(), undefined);
    const lock = path.join(cache, namesIn(cache)[0]);
    const past = new Date(Date.now() - 400_000);
    utimesSync(lock, past, past);
    assert.ok(await other.claim());
    await Claim.inherited(await one.file()).end();
    assert.deepEqual(namesIn(cache), []);
  });

  it("is not tried in a folder that cannot be used; the start says so, and serves", async () => {
    const file = path.join(folder, "a file");
    writeFileSync(file, "");
    const { mode, tools, said } = await start("node", { imageCache: path.join(file, "cache") });
    assert.equal(mode, "cold");
    assert.ok(tools > 0);
    assert.equal(said.length, 1);
    assert.match(said[0], /^No memory image can be kept in .*, so the next start is as slow: .*ENOTDIR/);
  });

  it("is not wished for where no image is", async () => {
    const imageCache = fresh();
    const { mode, said } = await start("node", { imageCache, useImage: false });
    assert.deepEqual([mode, said, namesIn(imageCache)], ["cold", [], []]);
  });

  it("has its folder from the option, the environment, or the system's habit", () => {
    const { env } = process;
    const names = ["SANDPORT_IMAGE_CACHE", "XDG_CACHE_HOME", "HOME"];
    const before = Object.fromEntries(names.map((name) => [name, env[name]]));
    const withEnv = (values, wish) => {
      for (const name of names) delete env[name];
      Object.assign(env, values);
      try {
        return imageFolder(wish);
      } finally {
        for (const name of names) delete env[name];
        for (const name of names) if (before[name] !== undefined) env[name] = before[name];
      }
    };
    const home = { HOME: "/home/me" };
    assert.equal(withEnv({ ...home, SANDPORT_IMAGE_CACHE: "/a" }, "/b"), path.resolve("/b"));
    assert.equal(withEnv({ ...home, SANDPORT_IMAGE_CACHE: "/a" }, false), undefined);
    assert.equal(withEnv({ ...home, SANDPORT_IMAGE_CACHE: "/a" }), path.resolve("/a"));
    assert.equal(withEnv({ ...home, SANDPORT_IMAGE_CACHE: "off" }), undefined);
    assert.equal(withEnv({ ...home, XDG_CACHE_HOME: "/x" }), path.join("/x", "sandport"));
    if (process.platform === "win32") return;
    assert.equal(withEnv({ ...home, XDG_CACHE_HOME: "relative" }), "/home/me/.cache/sandport");
    assert.equal(withEnv(home), "/home/me/.cache/sandport");
    assert.equal(withEnv({}), undefined);
  });
});

describe("the command", { timeout: 180_000 }, () => {
  function sandport(cache, ...args) {
    const all = [CLI, ...args, "--bundle", bundle, "--image-cache", cache];
    const running = run(process.execPath, all, { cwd: folder, timeout: 120_000 });
    running.child.stdin.end(
      '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n',
    );
    return running;
  }

  it("`agent` has an image made too, in place of one that is damaged", async () => {
    const cache = fresh();
    const { file } = await keep(cache, new Uint8Array([1, 2, 3]), "agent");
    truncateSync(file, 33);
    const cold = await sandport(cache, "agent");
    assert.equal(JSON.parse(cold.stdout).result.agentInfo.title, "Sandport agent");
    assert.match(
      cold.stderr,
      /^sandport agent: the memory image cannot be used here \(.* is damaged\); starting without it\nsandport agent: The next start will be quicker: .*\n$/,
    );
    await imageMade(cache);
    assert.deepEqual(namesIn(cache), [path.basename(file)]);
    const past = new Date(Date.now() - DAY);
    utimesSync(file, past, past);
    const next = await sandport(cache, "agent");
    assert.equal(JSON.parse(next.stdout).result.agentInfo.title, "Sandport agent");
    assert.equal(next.stderr, "");
    assert.ok(statSync(file).mtimeMs > past.getTime() + 1000, "it was not read");
    assert.deepEqual(namesIn(cache), [path.basename(file)]);
  });

  it("`image` makes what is missing, while it is waited for", async () => {
    const cache = fresh();
    await keep(cache, new Uint8Array([1]), "agent");
    const { stdout, stderr } = await sandport(cache, "image");
    assert.equal(stdout, "");
    assert.match(
      stderr,
      /^.*runtime-\w{32}\.image: made in \d+\.\d s\n.*agent-\w{32}\.image: is there, or is being made\n$/,
    );
    assert.match((await sandport(cache, "image")).stderr, /^(.*\.image: is there, or is being made\n){2}$/);
  });

  it("has nothing to make for a bundle with images", async () => {
    const cache = fresh();
    const args = [CLI, "image", "--bundle", path.join(ROOT, "dist"), "--image-cache", cache];
    const { stderr } = await run(process.execPath, args);
    assert.match(stderr, /^(The bundle has a memory image of its own.*\n){2}$/);
    assert.deepEqual(namesIn(cache), []);
  });
});
