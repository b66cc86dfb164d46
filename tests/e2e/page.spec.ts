/** The page as a thing people use: by keyboard, on a phone, in the dark. */

import { type Booted, boot, expect, scripted, test, withoutSandbox } from "./fixtures.ts";

test.describe
  .serial("a page in use", () => {
    let it: Booted;
    test.beforeAll(async ({ browser }) => {
      it = await boot(browser, scripted());
    });
    test.afterAll(() => it.close());

    test("keyboard alone: skip link, message, tool card, panels, stop, permission", async () => {
      await it.page.keyboard.press("Tab");
      await expect(it.page.getByRole("link", { name: "Skip to the message field" })).toBeFocused();
      await it.page.keyboard.press("Enter");
      const field = it.page.getByLabel("Message to the agent");
      await expect(field).toBeFocused();
      await it.page.keyboard.type("say first line");
      await it.page.keyboard.press("Shift+Enter");
      await it.page.keyboard.type("second line");
      await expect(field).toHaveValue("say first line\nsecond line");
      await it.page.keyboard.press("Enter");
      await expect(it.driver.messages("Agent").last()).toContainText("second line");
      await expect(it.page.locator(".sr-only[role=status]")).toContainText("The agent says: first line");

      await it.page.keyboard.type("wait");
      await it.page.keyboard.press("Enter");
      await expect(it.page.getByRole("button", { name: "Stop the agent" })).toBeVisible();
      await it.page.keyboard.press("Escape");
      await expect(it.page.locator("#chat .notice")).toHaveText("Stopped.");

      await it.page.keyboard.type('ask {"a":1}');
      await it.page.keyboard.press("Enter");
      await expect(it.page.getByRole("alertdialog")).toBeFocused();
      const allow = it.page.getByRole("button", { name: "Allow once" });
      for (let n = 0; n < 6 && !(await allow.evaluate((node) => node === document.activeElement)); n += 1) {
        await it.page.keyboard.press("Tab");
      }
      await expect(allow).toBeFocused();
      await expect(allow).toBeEnabled();
      expect(await allow.evaluate((node) => getComputedStyle(node).outlineStyle)).toBe("solid");
      await it.page.keyboard.press("Enter");
      await expect(it.driver.messages("Agent").last()).toHaveText("permission: yes");

      await it.page.keyboard.press("Alt+3");
      await expect(it.page.getByRole("heading", { name: "Log", exact: true })).toBeVisible();
      await it.page.keyboard.press("Alt+2");
      await it.page.keyboard.press("Tab");
      const tool = it.page.locator(".tool-entry summary").first();
      await expect(tool).toBeFocused();
      await it.page.keyboard.press("Enter");
      await expect(it.page.locator(".tool-entry-body").first()).toBeVisible();
      await it.page.keyboard.press("/");
      await expect(field).toBeFocused();

      await it.page.keyboard.press("Alt+5");
      await expect(it.page.getByRole("heading", { name: "Add a tool" })).toBeVisible();
      const editor = it.page.getByLabel("Source of the module");
      await editor.focus();
      await it.page.keyboard.press("Escape");
      await it.page.keyboard.press("Tab");
      await expect(it.page.getByRole("button", { name: "Load into the sandbox" })).toBeFocused();
    });

    test("R05: on a phone, looking at another view does not disturb a call", async () => {
      await it.page.setViewportSize({ width: 390, height: 844 });
      const views = it.page.getByRole("navigation", { name: "Views" });
      await views.getByRole("button", { name: "Chat" }).click();
      await it.driver.send('call workspace run_python {"code": "sum(range(3_000_000))"}');
      for (const name of ["Log", "Files", "Add", "Tools"]) {
        await views.getByRole("button", { name, exact: true }).click();
        const overflow = await it.page.evaluate(
          () => document.documentElement.scrollWidth - window.innerWidth,
        );
        expect(overflow).toBeLessThanOrEqual(0);
      }
      await views.getByRole("button", { name: "Chat" }).click();
      await expect(it.driver.messages("Agent").last()).toContainText("4499998500000");
      await expect(it.driver.messages("Agent").last()).toBeInViewport();
    });
  });

test("a message that is sent while the agent works waits for its turn, visibly", async ({
  gateway,
  driver,
  page,
}) => {
  await withoutSandbox(page);
  await driver.open((await gateway(scripted())).url);
  await driver.agentReady();
  const field = page.getByLabel("Message to the agent");
  const hint = page.locator(".hint.queued");
  await driver.send("wait");
  await field.fill("say nothing");
  await field.press("Enter");
  await expect(hint).toBeVisible();
  await field.fill("say later");
  await expect(hint).toBeHidden();
  await field.press("Enter");
  await page.setViewportSize({ width: 390, height: 844 });
  await expect(hint).toBeVisible();
  await field.press("Escape");
  await expect(driver.messages("Agent")).toHaveText(["later"]);
  await expect(driver.messages("You")).toHaveText(["wait", "say later"]);
  await expect(field).toHaveValue("");
});

test("the list of shortcuts opens with ? and closes with Escape", async ({ gateway, driver, page }) => {
  await withoutSandbox(page);
  await driver.open((await gateway(scripted())).url);
  await driver.agentReady();
  await page.locator(".messages").focus();
  await page.keyboard.press("?");
  await expect(page.getByRole("dialog")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toBeHidden();
});

test("colours follow the system, and a choice is kept", async ({ gateway, driver, page }) => {
  await withoutSandbox(page);
  await page.emulateMedia({ colorScheme: "dark" });
  await driver.open((await gateway(scripted())).url);
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await paper();
  await page.emulateMedia({ colorScheme: "light" });
  const light = await paper();
  expect(light).not.toBe(dark);
  const button = page.getByRole("button", { name: /Colours/ });
  await button.click();
  await button.click();
  expect(await paper()).toBe(dark);
  await page.reload();
  expect(await paper()).toBe(dark);
});
