// Takes pictures of dashboards: `node shot.js REQUEST.json`. The request has
//   prometheus: the URL to ask;  boards: the folder with the dashboards' JSON;
//   pictures: [{name, out, query}], `query` as in src/app.jsx.
// Prints, as JSON, what each picture shows.
const chromium = require('@sparticuz/chromium');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const puppeteer = require('puppeteer-core');

const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json' };
const DEADLINE_MS = 120000;

/** Serves the page, the dashboards, and Prometheus' API from one origin. */
function serve(request) {
  return http.createServer((incoming, outgoing) => {
    const url = new URL(incoming.url, 'http://localhost');
    if (url.pathname.startsWith('/api/')) {
      const asked = http.get(new URL(incoming.url, request.prometheus), (answer) => {
        outgoing.writeHead(answer.statusCode, answer.headers);
        answer.pipe(outgoing);
      });
      asked.on('error', (error) => outgoing.writeHead(502).end(String(error)));
      return;
    }
    const inside = url.pathname.startsWith('/boards/') ? request.boards : path.join(__dirname, 'out');
    const file = path.join(inside, path.basename(url.pathname === '/' ? 'index.html' : url.pathname));
    if (!fs.existsSync(file)) {
      outgoing.writeHead(404).end();
      return;
    }
    outgoing.writeHead(200, { 'content-type': TYPES[path.extname(file)] ?? 'application/octet-stream' });
    outgoing.end(fs.readFileSync(file));
  });
}

async function picture(browser, origin, { out, query }) {
  const page = await browser.newPage();
  const problems = [];
  page.on('pageerror', (error) => problems.push(String(error.stack ?? error)));
  await page.setViewport({ width: 1616, height: 1000 });
  await page.goto(`${origin}/?${new URLSearchParams(query)}`, { waitUntil: 'load', timeout: DEADLINE_MS });
  await page.waitForFunction('window.drawn', { timeout: DEADLINE_MS });
  const drawn = await page.evaluate('window.drawn');
  await page.screenshot({ path: out, fullPage: true });
  await page.close();
  return { ...drawn, errors: [...drawn.errors, ...problems] };
}

async function main() {
  const request = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
  const server = serve(request);
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  chromium.setGraphicsMode = false;
  const browser = await puppeteer.launch({
    args: [...chromium.args, '--no-sandbox', '--no-proxy-server', '--lang=en-US'],
    executablePath: await chromium.executablePath(),
    headless: chromium.headless,
    protocolTimeout: 2 * DEADLINE_MS,
  });
  try {
    const shown = {};
    for (const wanted of request.pictures) {
      shown[wanted.name] = await picture(browser, `http://127.0.0.1:${server.address().port}`, wanted);
    }
    process.stdout.write(JSON.stringify(shown));
  } finally {
    await browser.close();
    server.close();
  }
}

main().catch((error) => {
  process.stderr.write(`${error.stack ?? error}\n`);
  process.exit(1);
});
