/**
 * The gateway's token: it comes in the address's fragment, which no server and no log sees, and leaves the visible
 * address at once. It stays in this tab's session storage, so that a reload works.
 */

const KEY = "sandport.token";

/** Takes the token from the address or, after a reload, from this tab's storage. */
export function takeToken(
  location: Location = window.location,
  storage: Storage = sessionStorage,
): string | undefined {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    storage.setItem(KEY, given);
    history.replaceState(history.state, "", location.pathname + location.search);
    return given;
  }
  return storage.getItem(KEY) ?? undefined;
}
