// Pages of another site against the HTTP door, in a real browser. `scripts/test` installs one and runs this; by hand:
//
//   npm install @sparticuz/chromium puppeteer-core
//   PYLAIR_BIN=target/debug/pylair node browser.mjs
//
// It starts a server of its own. `evil.example` leads to this machine, as a name does that its owner has bound anew.

import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { pathToFileURL } from 'node:url';

// Packages are found where npm has put them, not beside this file.
const require = createRequire(path.join(process.cwd(), 'package.json'));
const load = async (name) => (await import(pathToFileURL(require.resolve(name)))).default;
const chromium = await load('@sparticuz/chromium');
const puppeteer = await load('puppeteer-core');

const binary = process.env.PYLAIR_BIN ?? 'pylair';
const home = fs.mkdtempSync(path.join(os.tmpdir(), 'pylair-browser-'));
const env = { ...process.env, PYLAIR_HOME: home };
const serving = spawn(binary, ['serve', '--port', '0'], { env, stdio: ['ignore', 'pipe', 'pipe'] });
const port = await new Promise((found, failed) => {
  let told = '';
  const hear = (chunk) => {
    told += chunk;
    const address = told.match(/http:\/\/127\.0\.0\.1:(\d+)/);
    if (address) found(address[1]);
  };
  serving.stdout.on('data', hear);
  serving.stderr.on('data', hear);
  serving.on('exit', () => failed(new Error(`the server ended: ${told}`)));
});
const token = spawnSync(binary, ['token'], { env, encoding: 'utf8' }).stdout.trim();
const server = `http://127.0.0.1:${port}`;
const evil = http.createServer((_, response) => {
  response.setHeader('content-type', 'text/html');
  response.end('<body>');
});
await new Promise((ready) => evil.listen(0, '127.0.0.1', ready));
const site = `http://evil.example:${evil.address().port}/`;

// The package's own flags open what is to be tried.
const opens = /disable-web-security|disable-site-isolation|single-process|no-zygote/;
const browser = await puppeteer.launch({
  args: [...chromium.args.filter((flag) => !opens.test(flag)), '--host-resolver-rules=MAP evil.example 127.0.0.1'],
  executablePath: await chromium.executablePath(),
  headless: 'shell',
});
let failed = 0;

function tell(name, said, wanted) {
  const good = wanted.test(said);
  failed += good ? 0 : 1;
  console.log(`${good ? 'ok  ' : 'FAIL'} ${name}: ${said}`);
}

async function on(address, use, options = {}) {
  const page = await browser.newPage();
  await page.setBypassCSP(options.bypass === true);
  await page.goto(address);
  const said = await use(page);
  await page.close();
  return said;
}

async function get(url, init) {
  try {
    const answer = await fetch(url, init);
    return `${answer.type} ${answer.status}`;
  } catch {
    return 'refused';
  }
}

const opened = (kind, url) =>
  new Promise((said) => {
    const source = kind === 'EventSource' ? new EventSource(url) : new WebSocket(url);
    source.onopen = () => said('open');
    source.onerror = () => said('refused');
  });

const loaded = (tag, url) =>
  new Promise((said) => {
    const element = document.createElement(tag);
    element.src = url;
    element.onload = () => said('loaded');
    element.onerror = () => said('refused');
    document.body.append(element);
  });

const framed = (url) =>
  new Promise((said) => {
    const frame = document.createElement('iframe');
    frame.src = url;
    frame.onload = () => said(frame.contentDocument ? 'readable' : 'opaque');
    document.body.append(frame);
  });

const withToken = { headers: { Authorization: `Bearer ${token}` } };
const code = JSON.stringify({ code: '6 * 7' });
const plain = { mode: 'no-cors', method: 'POST', body: code };
const run = (fn, ...args) => on(site, (page) => page.evaluate(fn, ...args));

tell('control: our own page with the token', await on(`${server}/health`, (page) => page.evaluate(get, '/api/sessions', withToken), { bypass: true }), /basic 200/);
tell('fetch with a stolen token', await run(get, `${server}/api/sessions`, withToken), /refused/);
tell('fetch', await run(get, `${server}/api/sessions`, {}), /refused/);
tell('fetch without CORS', await run(get, `${server}/api/sessions`, { mode: 'no-cors' }), /refused/);
tell('fetch of a POST without CORS', await run(get, `${server}/api/execute`, plain), /refused/);
tell('EventSource', await run(opened, 'EventSource', `${server}/mcp`), /refused/);
tell('WebSocket', await run(opened, 'WebSocket', `ws://127.0.0.1:${port}/mcp`), /refused/);
tell('a script tag', await run(loaded, 'script', `${server}/health`), /refused/);
tell('a picture', await run(loaded, 'img', `${server}/api/sessions`), /refused/);
tell('a frame', await run(framed, `${server}/health`), /opaque/);

const posted = await on(site, async (page) => {
  const answer = page.waitForNavigation();
  await page.evaluate((url) => {
    const form = document.createElement('form');
    Object.assign(form, { method: 'POST', enctype: 'text/plain', action: url });
    const field = document.createElement('input');
    Object.assign(field, { name: '{"code": "6 * 7", "target": "', value: '"}' });
    form.append(field);
    document.body.append(form);
    form.submit();
  }, `${server}/api/execute`);
  return String((await answer).status());
});
tell('a form', posted, /403/);

const bound = `http://evil.example:${port}`;
tell('rebinding: a page', await on(site, async (page) => String((await page.goto(`${bound}/api/sessions`)).status())), /403/);
tell('rebinding: fetch with a stolen token', await on(`${bound}/health`, (page) => page.evaluate(get, '/api/sessions', withToken), { bypass: true }), /basic 403/);

await browser.close();
evil.close();
serving.removeAllListeners('exit');
const ended = new Promise((done) => serving.on('exit', done));
serving.kill('SIGTERM');
await ended;
fs.rmSync(home, { recursive: true, force: true });
process.exitCode = failed ? 1 : 0;
