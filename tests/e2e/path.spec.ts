/** The whole path with the demo agent: stock agentpool, the real gateway, the real sandbox. */

import { readFileSync } from "node:fs";
import { type Booted, boot, expect, scripted, test, withoutSandbox } from "./fixtures.ts";

test.describe
  .serial("the demo agent", () => {
    let it: Booted;
    test.beforeAll(async ({ browser }) => {
      it = await boot(browser);
    });
    test.afterAll(() => it.close());

    test("answers with tools of the page, and nothing leaves the machine", async () => {
      const answer = await it.driver.ask(
        "Find where ToolHost is defined, read that file and count its lines",
      );
      const file = new URL("../../core/sandport/host/host.py", import.meta.url);
      const lines = readFileSync(file, "utf8").split("\n").length - 1;
      expect(answer).toContain("core/sandport/host/host.py");
      expect(answer).toContain(`${lines} lines`);
      await it.driver.panel("Log");
      for (const tool of ["search", "read_file", "run_python"]) {
        const entry = it.page.locator("#panel-log .log-entry.ok .log-name", {
          hasText: new RegExp(`^${tool}$`),
        });
        await expect(entry).toBeVisible();
      }
      expect(it.foreign).toEqual([]);
      expect(it.errors).toEqual([]);
    });

    test("sees and uses a tool that is added while it runs", async () => {
      expect(await it.driver.ask('Call shout with {"text": "ahoy"}')).not.toContain("AHOY!");
      await it.driver.panel("Add");
      await it.page.getByRole("button", { name: "Load into the sandbox" }).click();
      await expect(it.page.locator("#panel-add").getByRole("status")).toContainText(
        "Loaded: file_types, shout",
      );
      expect(await it.driver.ask('Call shout with {"text": "ahoy"}')).toContain("AHOY!");
    });

    test("is given the page's own tools in the same conversation, and each call asks", async () => {
      const said = await it.driver.messages("You").allInnerTexts();
      await it.driver.panel("Tools");
      await it.page.getByTestId("lend-page").check();
      await expect(it.page.getByText("told of the tools that you switched on")).toBeVisible();
      await it.driver.agentReady();
      await expect(it.driver.messages("You")).toHaveText(said);
      await it.driver.send("Call person_settings with {}");
      const question = it.page.getByRole("alertdialog");
      await expect(question).toContainText("outside the sandbox");
      await question.getByRole("button", { name: "Allow once" }).click();
      const zone = await it.page.evaluate(() => Intl.DateTimeFormat().resolvedOptions().timeZone);
      await expect(it.driver.messages("Agent").last()).toContainText(zone);
      await it.driver.send("Call person_settings with {}");
      await question.getByRole("button", { name: "Do not allow" }).click();
      await expect(it.driver.messages("Agent").last()).toContainText("did not allow");
    });
  });

test("a reload keeps the token, and the address shows none", async ({ gateway, driver, page }) => {
  await withoutSandbox(page);
  const { url, token } = await gateway(scripted());
  await driver.open(url);
  await driver.agentReady();
  expect(page.url()).not.toContain(token);
  await page.reload();
  await driver.agentReady();
});
