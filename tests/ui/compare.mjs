// Opens MLflow's comparison of some runs, then the page of their parent, and prints what a person
// sees there as JSON. The one argument is JSON:
//   library     folder with node_modules/playwright-core      chromium   the browser
//   address     of the UI      experiment, runs, parent       ids
//   metric      a metric to wait for      described  a word of the parent's description
//   picture     where the screenshot of the comparison goes   timeout    in milliseconds
import { createRequire } from 'node:module';

const given = JSON.parse(process.argv[2]);
const { chromium } = createRequire(`${given.library}/`)('playwright-core');
const browser = await chromium.launch({
  executablePath: given.chromium,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const page = await browser.newPage({ viewport: { width: 1400, height: 1500 } });
const outside = new Set();
const errors = [];
page.on('request', (request) => {
  const host = new URL(request.url()).hostname;
  if (!['127.0.0.1', 'localhost', ''].includes(host)) outside.add(host);
});
page.on('pageerror', (error) => errors.push(error.message));

const list = (values) => encodeURIComponent(JSON.stringify(values));
const seen = async () => {
  const close = page.locator('button[data-component-id="mlflow.assistant.chat_panel.close"]');
  if (await close.count()) await close.first().click();
  await page.waitForTimeout(2000);
  return page.innerText('body');
};

await page.goto(`${given.address}/#/compare-runs?runs=${list(given.runs)}`
  + `&experiments=${list([given.experiment])}`);
await page.getByText(given.metric, { exact: true }).first().waitFor({ timeout: given.timeout });
const comparison = await seen();
await page.getByText('Parameters', { exact: true }).first().click(); // fold them: the numbers fit
await page.waitForTimeout(1000);
await page.screenshot({ path: given.picture });

await page.goto(`${given.address}/#/experiments/${given.experiment}/runs/${given.parent}`);
await page.getByText(given.described).first().waitFor({ timeout: given.timeout });
const parent = await seen();
await browser.close();
console.log(JSON.stringify({ comparison, parent, outside: [...outside], errors }));
