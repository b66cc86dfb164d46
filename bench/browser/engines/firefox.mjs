import puppeteer from "puppeteer-core";

/** Firefox by WebDriver BiDi. */
export async function openFirefox(profile) {
  const browser = await puppeteer.launch({
    browser: "firefox",
    executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr",
    headless: true,
    userDataDir: profile,
    protocolTimeout: 300_000,
    extraPrefsFirefox: { "app.update.enabled": false, "network.captive-portal-service.enabled": false },
  });
  const page = await browser.newPage();
  return {
    version: await browser.version(),
    async open({ url }) {
      await page.goto("about:blank");
      await page.goto(url);
    },
    run: ({ code }) => page.evaluate(`(async () => { ${code} })()`),
    close: () => browser.close(),
  };
}
