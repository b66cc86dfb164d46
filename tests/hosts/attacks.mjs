/**
 * Ways from tool code to the machine. Each is a function of {secret, address, out, pid} as text; what it returns is what it got,
 * and an exception, or nothing, means that the way was closed.
 */

const silent = "setTimeout(() => reject(new Error('silent')), 3000);";

export const ATTACKS = {
  "read a file (Deno)": "(s) => globalThis.Deno.readTextFileSync(s.secret)",
  "read a file (node:fs)": "async (s) => (await import('node:fs')).readFileSync(s.secret, 'utf8')",
  "read a file (builtin)": "(s) => process.getBuiltinModule('node:fs').readFileSync(s.secret, 'utf8')",
  "read a file (fetch)": "async (s) => (await fetch('file://' + s.secret)).text()",
  "read a file (import)":
    "async (s) => (await import('file://' + s.secret + '.json', {with: {type: 'json'}})).default.text",
  "read a file (Bun)": "async (s) => globalThis.Bun.file(s.secret).text()",
  "run a command (Deno)":
    "(s) => new TextDecoder().decode(new Deno.Command('cat', {args: [s.secret]}).outputSync().stdout)",
  "run a command (node)":
    "async (s) => (await import('node:child_process')).execFileSync('/bin/cat', [s.secret]).toString()",
  "run a command (Bun)": "(s) => Bun.spawnSync(['/bin/cat', s.secret]).stdout.toString()",
  "read the environment (Deno)": "() => Deno.env.get('SANDPORT_TEST_SECRET')",
  "read the environment (node)": "() => process.env.SANDPORT_TEST_SECRET",
  "read the environment (/proc)":
    "async () => (await import('node:fs')).readFileSync('/proc/self/environ', 'utf8').length",
  "a thread of its own": `async (s) => {
    const { Worker } = await import('node:worker_threads');
    const code = "const { parentPort } = require('node:worker_threads');" +
      "parentPort.postMessage(require('node:fs').readFileSync(" + JSON.stringify(s.secret) + ", 'utf8'));";
    const worker = new Worker(code, { eval: true });
    return await new Promise((resolve, reject) => {
      worker.on('message', resolve);
      worker.on('error', reject);
      ${silent}
    });
  }`,
  "a worker with more permissions": `async (s) => {
    const code = 'postMessage(Deno.readTextFileSync(' + JSON.stringify(s.secret) + '))';
    const worker = new Worker('data:text/javascript,' + encodeURIComponent(code),
      { type: 'module', deno: { permissions: { read: true } } });
    return await new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = (event) => { event.preventDefault?.(); reject(new Error(event.message)); };
      ${silent}
    });
  }`,
  "a worker with the parent's permissions": `async (s) => {
    const code = 'postMessage(Deno.readTextFileSync(' + JSON.stringify(s.secret) + '))';
    const worker = new Worker('data:text/javascript,' + encodeURIComponent(code),
      { type: 'module', deno: { permissions: 'inherit' } });
    return await new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = (event) => { event.preventDefault?.(); reject(new Error(event.message)); };
      ${silent}
    });
  }`,
  "ask for permission":
    "async () => (await Deno.permissions.request({name: 'read'})).state === 'granted' && 'granted'",
  "send to the network (fetch)": "async (s) => (await fetch(s.address + 'fetch')).text()",
  "send to the network (node:http)": `async (s) => {
    const http = await import('node:http');
    return await new Promise((resolve, reject) =>
      http.get(s.address + 'http', (answer) => resolve('status ' + answer.statusCode)).on('error', reject));
  }`,
  "send to the network (WebSocket)": `(s) => new Promise((resolve, reject) => {
    const socket = new WebSocket(s.address.replace('http', 'ws') + 'socket');
    socket.onopen = () => resolve('connected');
    socket.onerror = () => reject(new Error('closed'));
  })`,
  "send to the network (Deno)": `async (s) => {
    const { hostname, port } = new URL(s.address);
    (await Deno.connect({ hostname, port: Number(port) })).close();
    return 'connected';
  }`,
  "load a module from the network": "async (s) => (await import(s.address + 'module.js')).default",
  "write a file (Deno)": "(s) => { Deno.writeTextFileSync(s.out, 'written'); return 'written'; }",
  "write a file (node)":
    "async (s) => { (await import('node:fs')).writeFileSync(s.out, 'written'); return 'written'; }",
  "native code (Deno)":
    "() => String(Deno.dlopen('libc.so.6', {getpid: {parameters: [], result: 'i32'}}).symbols.getpid())",
  "native code (Bun)":
    "async () => String((await import('bun:ffi')).dlopen('libc.so.6', {getpid: {args: [], returns: 'i32'}}).symbols.getpid())",
  "signal this process (Deno)": "() => { Deno.kill(Deno.pid, 'SIGURG'); return 'sent'; }",
  "signal another process (Deno)": "(s) => { Deno.kill(s.pid, 'SIGURG'); return 'sent'; }",
  "signal another process (node)": "(s) => process.kill(s.pid, 0) && 'sent'",
  "write to the program's output (Deno)":
    "() => Deno.stdout.writeSync(new TextEncoder().encode('from a tool\\n')) && 'written'",
  "write to the program's output (node)":
    "async () => (await import('node:fs')).writeSync(1, 'from a tool\\n') && 'written'",
  "read the program's input (Deno)": "() => { Deno.stdin.readSync(new Uint8Array(1)); return 'read'; }",
  "write a file (node:sqlite)": `async (s) => {
    const { DatabaseSync } = await import('node:sqlite');
    new DatabaseSync(s.out + '.db').exec('create table t (a)');
    return 'written';
  }`,
  "write a file (Deno.openKv)": "async (s) => { await Deno.openKv(s.out); return 'written'; }",
  "keep data between runs (caches)":
    "async () => { await (await caches.open('t')).put('https://t.invalid/', new Response('kept')); return 'kept'; }",
  "talk to other threads (BroadcastChannel)": `(s) => new Promise((resolve, reject) => {
    const one = new BroadcastChannel('t');
    const two = new BroadcastChannel('t');
    two.onmessage = ({ data }) => { one.close(); two.close(); resolve(data); };
    one.postMessage('heard');
    ${silent}
  })`,
  "load a package (npm:)": "async () => Object.keys(await import('npm:is-odd@3.0.1')).length",
  "look at the process (node:inspector)": `async () => {
    const { Session } = await import('node:inspector');
    const session = new Session();
    session.connectToMainThread();
    return 'connected';
  }`,
  "the machine's name (Deno)": "() => Deno.hostname()",
  "the machine's name (node)": "async () => (await import('node:os')).hostname()",
};
