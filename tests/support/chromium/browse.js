// Opens pages in headless Chromium: `node browse.js REQUEST.json`, a list of {url, out, width}.
// Prints, as JSON, of each page what `Page` of browser.py has.
const chromium = require('@sparticuz/chromium');
const fs = require('node:fs');
const puppeteer = require('puppeteer-core');

async function open(browser, { url, out, width }) {
  const page = await browser.newPage();
  const problems = [];
  page.on('console', (message) => problems.push(message.text()));
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('requestfailed', (request) => problems.push(`${request.url()}: ${request.failure().errorText}`));
  await page.setViewport({ width, height: 900 });
  const response = await page.goto(url, { waitUntil: 'load', timeout: 60000 });
  const shown = await page.evaluate(() => ({
    title: document.title,
    text: document.body.innerText,
    links: [...document.links].map((link) => link.getAttribute('href')),
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    cut: [...document.querySelectorAll('pre > code')]
      .filter((code) => code.scrollWidth > code.clientWidth)
      .map((code) => code.innerText.split('\n')[0]),
    broken: [...document.querySelectorAll('td:first-child code')]
      .filter((code) => !/\s/.test(code.innerText) && code.getClientRects().length > 1)
      .map((code) => code.innerText),
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
