/** Chromium for tests of what is published: the examples and the package. */

import { existsSync } from "node:fs";
import { chromium } from "@playwright/test";

/** Starts the Chromium that CHROMIUM names, the system's, or Playwright's. */
export function launchChromium() {
  const executablePath = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/google-chrome"].find(
    (file) => file && existsSync(file),
  );
  return chromium.launch({
    ...(executablePath ? { executablePath } : {}),
    // Chromium's own sandbox refuses to run as root.
    args: ["--disable-gpu", ...(process.getuid?.() === 0 ? ["--no-sandbox"] : [])],
  });
}
