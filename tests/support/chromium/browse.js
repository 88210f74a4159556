// Opens pages in headless Chromium: `node browse.js REQUEST.json`, a list of {url, out}.
// Prints, as JSON, of each page: its status, title, visible text, links, and what the browser complains of.
const chromium = require('@sparticuz/chromium');
const fs = require('node:fs');
const puppeteer = require('puppeteer-core');

async function open(browser, { url, out }) {
  const page = await browser.newPage();
  const problems = [];
  page.on('console', (message) => problems.push(message.text()));
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('requestfailed', (request) => problems.push(`${request.url()}: ${request.failure().errorText}`));
  await page.setViewport({ width: 1280, height: 900 });
  const response = await page.goto(url, { waitUntil: 'load', timeout: 60000 });
  const shown = await page.evaluate(() => ({
    title: document.title,
    text: document.body.innerText,
    links: [...document.links].map((link) => link.getAttribute('href')),
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  }));
  await page.screenshot({ path: out, fullPage: true });
  await page.close();
  return { status: response.status(), ...shown, problems };
}

async function main() {
  chromium.setGraphicsMode = false;
  const browser = await puppeteer.launch({
    args: [...chromium.args, '--no-sandbox', '--no-proxy-server'],
    executablePath: await chromium.executablePath(),
    headless: chromium.headless,
  });
  try {
    const pages = [];
    for (const request of JSON.parse(fs.readFileSync(process.argv[2], 'utf8'))) {
      pages.push(await open(browser, request));
    }
    console.log(JSON.stringify(pages));
  } finally {
    await browser.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
