// Uses a page of `medapps export --web` as a person would, and prints what it shows as JSON.
// The one argument is JSON:
//   library     folder with node_modules/playwright-core      chromium   the browser
//   profile     folder of the browser's profile, kept between runs
//   address     of the page       users   names to choose     chosen     ids that somebody new taps
//   newer       take over the newer version that the page offers, first
//   picture     where a screenshot goes, if anywhere          timeout    in milliseconds
import { createRequire } from 'node:module';

const given = JSON.parse(process.argv[2]);
const { chromium } = createRequire(`${given.library}/`)('playwright-core');
const browser = await chromium.launchPersistentContext(given.profile, {
  executablePath: given.chromium,
  viewport: { width: 390, height: 844 },
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const page = browser.pages()[0] || await browser.newPage();
page.setDefaultTimeout(given.timeout);
const outside = new Set();
const errors = [];
browser.on('request', (request) => {
  const { origin } = new URL(request.url());
  if (origin !== new URL(given.address).origin) outside.add(request.url());
});
page.on('pageerror', (error) => errors.push(error.message));
page.on('console', (message) => { if (message.type() === 'error') errors.push(message.text()); });

await page.goto(given.address);
await page.getByText('works offline', { exact: true }).waitFor();
await page.locator('body[data-shown]').waitFor();
const old = await page.locator('#data').innerText();
if (given.newer) {
  await page.locator('#newer').click();
  await page.locator('#data').getByText(old, { exact: true }).waitFor({ state: 'detached' });
  await page.locator('body[data-shown]').waitFor();
}
const data = await page.locator('#data').innerText();
const dims = (await page.locator('#ticks span').allInnerTexts()).map(Number);

// waits until the list of exactly this person and size is shown
const seen = async (mode, who, dim) => {
  const wanted = JSON.stringify([mode, who, dim]);
  await page.locator(`body[data-shown='${wanted}']`).waitFor();
  const lines = await page.locator('#list li').all();
  return {
    dim,
    items: await Promise.all(lines.map((line) => line.getAttribute('data-item'))),
    scores: (await Promise.all(lines.map((line) => line.getAttribute('data-score')))).map(Number),
    names: await page.locator('#list .name').allInnerTexts(),
    reasons: await page.locator('#list li').evaluateAll((all) => all.map((line) => {
      const why = line.querySelector('.why');
      return why ? JSON.parse(why.dataset.reasons) : [];
    })),
    bytes: await page.locator('#bytes').innerText(),
    time: await page.locator('#time').innerText(),
    quality: await page.locator('#quality').innerText(),
    change: await page.locator('#change').innerText(),
  };
};
const slide = async (place) => {
  await page.locator('#size').press('Home');
  for (let i = 0; i < place; i++) await page.locator('#size').press('ArrowRight');
};

const users = {};
for (const { name, row } of given.users) {
  if (await page.locator('#user').isVisible()) await page.locator('#user').fill(name);
  users[name] = [];
  for (let place = 0; place < dims.length; place++) {
    await slide(place);
    users[name].push(await seen('user', row, dims[place]));
  }
}
const note = await page.locator('#user-note').innerText();

const fresh = [];
await page.getByRole('tab', { name: 'Somebody new' }).click();
await slide(0);
fresh.push(await seen('new', [], dims[0]));
for (const { id } of given.chosen) {
  await page.getByLabel('Find a product').fill(id);
  await page.locator(`#offers button[data-item="${id}"]`).click();
}
for (let place = 0; place < dims.length; place++) {
  await slide(place);
  fresh.push(await seen('new', given.chosen.map(({ row }) => row), dims[place]));
}
const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
if (given.picture) await page.screenshot({ path: given.picture, fullPage: true });
await browser.close();
console.log(JSON.stringify({ old, data, dims, users, fresh, note, wide, outside: [...outside], errors }));
