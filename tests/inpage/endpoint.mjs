/**
 * A scripted endpoint that speaks OpenAI's chat API, on loopback; it records all that it gets.
 *
 * Invariant: what it answers depends on the request alone: the first turn shows a plan and calls the tool that the
 * person names, the next says what came of it. "hang" streams a word and never ends.
 */

import { createServer } from "node:http";

const MODEL = "scripted-1";

/** @param {{key?: string, allow?: (origin: string) => boolean}} options the key it wants; the origins that may read it. */
export async function scriptedEndpoint({ key = "sk-test", allow = () => true } = {}) {
  const requests = [];
  const closed = [];
  const server = createServer((request, response) => {
    const origin = request.headers.origin ?? "";
    const cors = allow(origin)
      ? {
          "Access-Control-Allow-Origin": origin,
          "Access-Control-Allow-Headers": "authorization, content-type",
        }
      : {};
    if (request.method === "OPTIONS") {
      response.writeHead(204, cors).end();
      return;
    }
    let text = "";
    request.on("data", (chunk) => {
      text += chunk;
    });
    request.on("end", () => {
      const seen = { method: request.method, url: request.url, headers: request.headers, body: text };
      requests.push(seen);
      response.on("close", () => closed.push(response.writableFinished));
      const fail = (status, message) =>
        response
          .writeHead(status, { ...cors, "Content-Type": "application/json" })
          .end(JSON.stringify({ error: { message } }));
      if (request.headers.authorization !== `Bearer ${key}`) return fail(401, "Incorrect API key provided");
      if (!request.url?.startsWith("/v1/chat/completions")) return fail(404, "no such path");
      const body = JSON.parse(text);
      if (body.model !== MODEL) return fail(404, `the model ${body.model} does not exist`);
      response.writeHead(200, { ...cors, "Content-Type": "text/event-stream" });
      stream(response, body);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const origin = `http://127.0.0.1:${server.address().port}`;
  return {
    origin,
    address: `${origin}/v1`,
    model: MODEL,
    key,
    requests,
    closed,
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}

function stream(response, { messages }) {
  const send = (delta, finish = null) =>
    response.write(
      `data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", created: 1, model: MODEL, choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`,
    );
  const end = (finish) => {
    send({}, finish);
    response.end("data: [DONE]\n\n");
  };
  const last = messages.at(-1);
  const asked = textOf(messages.findLast(({ role }) => role === "user"));
  send({ role: "assistant", content: "" });
  if (last.role === "tool") {
    const results = messages
      .slice(messages.findLastIndex(({ role }) => role === "user"))
      .filter(({ role }) => role === "tool");
    send({ content: "The tools " });
    send({ content: `said: ${results.map(textOf).join(" | ")}` });
    end("stop");
    return;
  }
  if (asked.startsWith("hang")) {
    send({ content: "Thinking" });
    return;
  }
  const call = /^call (\w+) (\{.*\})$/.exec(asked);
  if (!call) {
    send({ content: `You said: ${asked}` });
    end("stop");
    return;
  }
  const plan = { entries: [{ content: `Call ${call[1]}`, status: "in_progress", priority: "high" }] };
  const tool = (index, id, name, args) =>
    send({ tool_calls: [{ index, id, type: "function", function: { name, arguments: args } }] });
  tool(0, "call_plan", "update_plan", JSON.stringify(plan));
  // In pieces, as real endpoints do.
  tool(1, "call_tool", call[1], "");
  for (const piece of call[2].match(/.{1,7}/gs) ?? [])
    send({ tool_calls: [{ index: 1, function: { arguments: piece } }] });
  end("tool_calls");
}

function textOf({ content }) {
  if (typeof content === "string") return content;
  return (content ?? []).map((part) => part.text ?? "").join("");
}
