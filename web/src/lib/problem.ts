/** Errors as a person should see them: what happened, why, and what to do. */

/** A thing that went wrong. */
export interface Problem {
  readonly title: string;
  readonly cause: string;
  readonly remedy: string;
}

/** The code and text of a JSON-RPC error, whatever class carries it. */
function rpc(error: unknown): { code: number | undefined; message: string; remedy?: string } {
  if (error instanceof Error) {
    const code = "code" in error && typeof error.code === "number" ? error.code : undefined;
    const data = "data" in error ? error.data : undefined;
    const details =
      typeof data === "object" && data !== null && "details" in data && typeof data.details === "string"
        ? `: ${data.details}`
        : "";
    const remedy =
      typeof data === "object" && data !== null && "remedy" in data && typeof data.remedy === "string"
        ? { remedy: data.remedy }
        : {};
    return { code, message: error.message + details, ...remedy };
  }
  return { code: undefined, message: String(error) };
}

/** Why no session could be started. */
export function sessionProblem(error: unknown): Problem {
  const { code, message } = rpc(error);
  if (code === -32000) {
    return {
      title: "The agent wants you to log in",
      cause: message,
      remedy: "Log in with the agent's own command in a terminal, then reconnect.",
    };
  }
  return {
    title: "The agent did not start a session",
    cause: message,
    remedy: "Look at the terminal where sandport runs for what the agent said, then reconnect.",
  };
}

/** Why a turn ended with an error. */
export function turnProblem(error: unknown): Problem {
  const { message, remedy } = rpc(error);
  return {
    title: "The agent could not finish",
    cause: message,
    remedy: remedy ?? "Send the message again, or start over by reconnecting.",
  };
}

/** The close codes of a gateway that is there and lets this page not in: for good, and for now. */
export const CLOSE_REFUSED = 1008;
export const CLOSE_TRY_LATER = 1013;

function sentence(text: string): string {
  return text && `${text[0]?.toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`;
}

/** Why there is no connection, from a close code. A gateway that refuses says `CAUSE: REMEDY`. */
export function closeProblem(code: number, reason: string): Problem {
  const [, cause = reason, remedy = ""] = /^(.*?): (.*)$/su.exec(reason) ?? [];
  if (code === CLOSE_REFUSED) {
    return {
      title: "The gateway refuses this page",
      cause: sentence(cause) || "The token in the address is missing, wrong, or of an earlier start.",
      remedy: sentence(remedy) || "Open the address that sandport printed in the terminal at its last start.",
    };
  }
  if (code === CLOSE_TRY_LATER) {
    return {
      title: "The gateway takes no further page now",
      cause: sentence(cause) || "It is full, or about to stop.",
      remedy: `${sentence(remedy) || "Close another page of it."} This page tries again by itself.`,
    };
  }
  if (code === 1011) {
    return {
      title: "The agent ended",
      cause: reason || "The agent's process is gone.",
      remedy: "The page tries again by itself. If it goes on, look at the terminal where sandport runs.",
    };
  }
  return {
    title: "No connection to the agent",
    cause: reason || `The connection was lost (code ${code}).`,
    remedy: "Check that sandport still runs in its terminal. The page tries again by itself.",
  };
}

/** Why the agent in this page is not there. */
export function inPageProblem(reason: string): Problem {
  return {
    title: "The agent in this page is not running",
    cause: reason || "It ended without a reason.",
    remedy: "The page starts it again by itself. If it goes on, reload the page.",
  };
}

/** The page was opened without a token. */
export const NO_TOKEN: Problem = {
  title: "This address has no token",
  cause: "The gateway lets a page in only with the token that it printed at its start.",
  remedy: "Copy the whole address from the terminal, up to the end of #token=…, and open it here.",
};
