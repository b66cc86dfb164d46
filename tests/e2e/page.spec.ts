/** The page as a thing people use: by keyboard, on a phone, in the dark. */

import { expect, scripted, test } from "./fixtures.ts";

test("keyboard alone: skip link, message, tool card, panels, stop, permission", async ({
  gateway,
  driver,
  page,
}) => {
  await driver.open((await gateway(scripted())).url);
  await driver.ready();
  await page.keyboard.press("Tab");
  await expect(page.getByRole("link", { name: "Skip to the message field" })).toBeFocused();
  await page.keyboard.press("Enter");
  const field = page.getByLabel("Message to the agent");
  await expect(field).toBeFocused();
  await page.keyboard.type("say first line");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("second line");
  await expect(field).toHaveValue("say first line\nsecond line");
  await page.keyboard.press("Enter");
  await expect(driver.messages("Agent").last()).toContainText("second line");
  await expect(page.locator(".sr-only[role=status]")).toContainText("The agent says: first line");

  await page.keyboard.type("wait");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("button", { name: "Stop the agent" })).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.locator(".notice")).toHaveText("Stopped.");

  await page.keyboard.type('ask {"a":1}');
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alertdialog")).toBeFocused();
  const allow = page.getByRole("button", { name: "Allow once" });
  for (let n = 0; n < 6 && !(await allow.evaluate((node) => node === document.activeElement)); n += 1) {
    await page.keyboard.press("Tab");
  }
  await expect(allow).toBeFocused();
  expect(await allow.evaluate((node) => getComputedStyle(node).outlineStyle)).toBe("solid");
  await page.keyboard.press("Enter");
  await expect(driver.messages("Agent").last()).toHaveText("permission: yes");

  await page.keyboard.press("Alt+3");
  await expect(page.getByRole("heading", { name: "Log", exact: true })).toBeVisible();
  await page.keyboard.press("Alt+2");
  await page.keyboard.press("Tab");
  const tool = page.locator(".tool-entry summary").first();
  await expect(tool).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(page.locator(".tool-entry-body").first()).toBeVisible();
  await page.keyboard.press("/");
  await expect(field).toBeFocused();

  await page.keyboard.press("Alt+5");
  await expect(page.getByRole("heading", { name: "Add a tool" })).toBeVisible();
  const editor = page.getByLabel("Source of the module");
  await editor.focus();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Tab");
  await expect(page.getByRole("button", { name: "Load into the sandbox" })).toBeFocused();
});

test("the list of shortcuts opens with ? and closes with Escape", async ({ gateway, driver, page }) => {
  await driver.open((await gateway(scripted())).url);
  await driver.agentReady();
  await page.locator(".messages").focus();
  await page.keyboard.press("?");
  await expect(page.getByRole("dialog")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toBeHidden();
});

test("R05: on a phone, looking at another view does not disturb a call", async ({
  gateway,
  driver,
  page,
}) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await driver.open((await gateway(scripted())).url);
  await driver.ready();
  await driver.send('call workspace run_python {"code": "sum(range(3_000_000))"}');
  const views = page.getByRole("navigation", { name: "Views" });
  for (const name of ["Log", "Files", "Add", "Tools"]) {
    await views.getByRole("button", { name, exact: true }).click();
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    expect(overflow).toBeLessThanOrEqual(0);
  }
  await views.getByRole("button", { name: "Chat" }).click();
  await expect(driver.messages("Agent").last()).toContainText("4499998500000");
  await expect(driver.messages("Agent").last()).toBeInViewport();
});

test("colours follow the system, and a choice is kept", async ({ gateway, driver, page }) => {
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
