/** The browser's own WebMCP, where this Chromium has it. */

import { expect, scripted, test, withoutSandbox } from "./fixtures.ts";
import config from "./playwright.config.ts";

const { launchOptions } = config.use ?? {};
test.use({
  launchOptions: {
    ...launchOptions,
    args: [...(launchOptions?.args ?? []), "--enable-features=WebMCP"],
  },
});

test("tools of the browser's model context are lent, and run through it", async ({
  gateway,
  driver,
  page,
}) => {
  const { url, origin } = await gateway(scripted());
  await withoutSandbox(page);
  await driver.open(url);
  await driver.agentReady();
  const native = await page.evaluate(
    () =>
      "modelContext" in document && /native code/.test(String((document.modelContext as never)["getTools"])),
  );
  test.skip(!native, "this browser has no WebMCP of its own");
  await driver.panel("Tools");
  await page.getByTestId("lend-webmcp").check();
  await expect(page.getByText("Nothing is registered yet.")).toBeVisible();
  await driver.agentReady();
  await page.evaluate(async () => {
    const { modelContext } = document as unknown as {
      modelContext: { registerTool(tool: unknown): Promise<void> };
    };
    await modelContext.registerTool({
      name: "add",
      description: "Adds.",
      inputSchema: {
        type: "object",
        properties: { a: { type: "number" }, b: { type: "number" } },
        required: ["a", "b"],
      },
      execute: ({ a, b }: { a: number; b: number }) => ({ sum: a + b }),
    });
  });
  await expect(page.locator("#panel-tools .tool-name", { hasText: "add" })).toBeVisible();
  expect(await driver.ask("tools webmcp")).toBe("tools: add");
  await driver.send('call webmcp add {"a": 2, "b": 3}');
  await expect(page.getByRole("alertdialog")).toContainText(origin);
  await page.getByRole("alertdialog").getByRole("button", { name: "Allow once" }).click();
  await expect(driver.messages("Agent").last()).toContainText('"sum":5');
});
