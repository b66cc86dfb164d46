/** How components reach the application; there is one for each page. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { App } from "./app.ts";

export const AppContext = createContext<App | undefined>(undefined);

export function useApp(): App {
  const app = useContext(AppContext);
  if (!app) throw new Error("no application around this component");
  return app;
}
