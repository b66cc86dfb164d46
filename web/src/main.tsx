/** The page's entry. A second load of this script on one page does nothing (case B08). */

import "./style.css";
import { render } from "preact";
import { applyTheme } from "./lib/theme.ts";
import { App } from "./model/app.ts";
import { AppContext } from "./model/context.ts";
import { Shell } from "./ui/shell.tsx";

const LOADED = Symbol.for("sandport.page");

const root = document.getElementById("app");
if (root && !(LOADED in window)) {
  Object.defineProperty(window, LOADED, { value: true });
  applyTheme();
  const app = new App();
  render(
    <AppContext.Provider value={app}>
      <Shell />
    </AppContext.Provider>,
    root,
  );
  void app.start();
}
